"""Which destabilised runs are made, how truth is read from a pair, and which half is scored.

Law: pure, and fixed before the first run was made. Truth comes from the pair alone, never from a
detector.

A run is forked at step 1,200 of a healthy one (seed, beta2, clip) and trained on the same batches
as its twin without the fault; excess is the difference of their losses, step by step. Steps of
the truth rule count from the last step of the fault, from the first of a fault that never ends.

- delta: the larger of 0.02 nats and 3 standard deviations of the difference between no-fault
  twins whose weights were perturbed by different seeds, each difference averaged as below
- recoverable: the mean excess over steps +400 to +500 is below delta
- divergent: a loss up to step +500 is not finite at +400 or later, or the excess is above delta
  and rising: the mean of the second half of that window is above that of the first half by more
  than delta and 5 % of it
- lingering: above delta and flat, or falling too slowly to be back
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from spikeguard_protocol import Kind
from spikeguard_trainer.faults import Fault, FaultName

Losses = NDArray[np.float64]  # (steps,), the first at step FORK + 1

FORK = 1200  # steps of the healthy run that every fault and twin of it share
STEPS = 510  # after the fork
WINDOW = (400, 500)  # steps after the fault that truth is read from
FLOOR = 0.02  # nats
DEVIATIONS = 3.0
RISE = 0.05  # of the excess, between the halves of the window

SEEDS = (3, 4)
BETA2 = (0.95, 0.99, 0.999)
CLIPS = (1.0, 0.0)  # 0: not clipped
PERTURBED = 1  # twins of each healthy run, for delta
PERTURBATION = 0.01  # of the root mean square of each matrix
NEVER_TUNED = FaultName.WEIGHT_SCALE
LASTING = STEPS  # a fault of this length never ends
ROWS = 96  # sequences of a batch


@dataclass(frozen=True, slots=True)
class Healthy:
    """A run without faults, from which others are forked."""

    seed: int
    beta2: float
    clip: float

    def __str__(self) -> str:
        return f"s{self.seed}_b{self.beta2:g}_c{self.clip:g}"


@dataclass(frozen=True, slots=True)
class Run:
    """One destabilised run."""

    healthy: Healthy
    fault: Fault

    def __str__(self) -> str:
        fault = self.fault
        return f"{self.healthy}_{fault.name}_{fault.length}_{fault.strength:g}"

    @property
    def end(self) -> int:
        """Rows after the fork, from 0, of the step that truth counts from."""
        lasts = self.fault.length >= LASTING
        return 0 if lasts else self.fault.length - 1

    @property
    def tunes(self) -> bool:
        """Whether constants may be chosen on it: half of faults x seeds, one type never."""
        if self.fault.name is NEVER_TUNED:
            return False
        return (list(MENU).index(self.fault.name) + self.healthy.seed) % 2 == 0


MENU: dict[FaultName, tuple[tuple[int, float], ...]] = {  # (length, strength), mild to grave
    FaultName.BAD_BATCH: ((1, 1.0), (3, 1.0), (8, 1.0)),
    FaultName.BAD_BATCH_REPEATED: ((2, 1.0), (4, 1.0), (8, 1.0)),
    FaultName.BAD_BATCH_SHUFFLED: ((2, 1.0), (8, 1.0), (LASTING, 0.5)),
    FaultName.GRADIENT_ASCENT: ((4, 10.0), (8, 40.0), (LASTING, 1.0)),
    FaultName.LR_BUMP: ((5, 20.0), (8, 60.0), (LASTING, 100.0)),
    FaultName.WEIGHT_SCALE: ((1, 1.5), (1, 3.0), (1, 8.0)),
    FaultName.WEIGHT_NOISE: ((1, 0.5), (1, 1.5), (1, 4.0)),
    FaultName.MOMENT_RESET: ((1, 1e2), (1, 1e4), (1, 1e10)),
    FaultName.BIT_FLIP: ((1, 25.0), (1, 28.0), (1, 30.0)),
    FaultName.NAN_GRAD: ((1, 1.0), (3, 1.0), (1, 10.0)),
}


def healthy_runs() -> Iterator[Healthy]:
    """Every healthy run."""
    for seed, beta2, clip in product(SEEDS, BETA2, CLIPS):
        yield Healthy(seed, beta2, clip)


def runs_of(healthy: Healthy) -> Iterator[Run]:
    """Its destabilised runs: every fault once, in a strength that goes round."""
    place = list(healthy_runs()).index(healthy)
    for number, (name, choices) in enumerate(MENU.items()):
        length, strength = choices[(place + place // len(choices) + number) % len(choices)]
        yield Run(healthy, Fault(name, FORK + 1, length, strength))


def damage(run: Run, loss: Losses, twin: Losses) -> Losses:
    """Excess over the twin in the window that truth is read from, nats."""
    first, last = (run.end + edge for edge in WINDOW)
    excess: Losses = loss[first:last] - twin[first:last]
    return excess


def truth(run: Run, loss: Losses, twin: Losses, delta: float) -> Kind:
    """The kind of `run` from the pair."""
    excess = damage(run, loss, twin)
    if not np.isfinite(excess).all():
        return Kind.DIVERGENT
    mean = float(excess.mean())
    if mean < delta:
        return Kind.RECOVERABLE
    half = len(excess) // 2
    rise = float(excess[half:].mean() - excess[:half].mean())
    return Kind.DIVERGENT if rise > max(delta, RISE * mean) else Kind.LINGERING


def delta_of(pairs: Sequence[tuple[Losses, Losses]]) -> float:
    """What a pair must differ by to be damaged, from no-fault twins; nats."""
    first, last = WINDOW
    means = [float((a[first:last] - b[first:last]).mean()) for a, b in pairs]
    deviation = math.sqrt(sum(mean * mean for mean in means) / len(means))
    return max(FLOOR, DEVIATIONS * deviation)
