"""The widened set of destabilised runs that the early verdict is scored on.

Invariants: pure, and fixed before the first run was made; no constant was chosen on these runs.
Truth is read from a pair of runs as in `naming_plan.py`; what differs is the breadth: faults that
last 1 to 60 steps, mild to grave, three optimizers, and batches a quarter and half as large, whose
loss is up to twice as noisy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from benchmarks.naming_plan import FORK, WINDOW, Healthy, OptimizerName, Run
from spikeguard_trainer.faults import Fault, FaultName

LONGEST = 60  # steps that a fault lasts
STEPS = WINDOW[1] + LONGEST  # after the fork, so that truth is read from whole windows
SEEDS = (5, 6)
CONDITIONS = (  # beta2, clip (0: not clipped), optimizer, sequences of a batch
    (0.95, 1.0, OptimizerName.ADAMW, 24),
    (0.999, 0.0, OptimizerName.ADAMW, 48),
    (0.95, 1.0, OptimizerName.MUON, 48),
    (0.95, 1.0, OptimizerName.SGD, 24),
)
MENU: dict[FaultName, tuple[tuple[int, float], ...]] = {  # (length, strength)
    FaultName.BAD_BATCH: ((1, 1.0), (4, 0.5), (15, 1.0), (LONGEST, 1.0)),
    FaultName.BAD_BATCH_REPEATED: ((2, 1.0), (8, 1.0), (30, 0.5), (LONGEST, 1.0)),
    FaultName.BAD_BATCH_SHUFFLED: ((3, 1.0), (20, 0.5), (40, 1.0), (LONGEST, 0.5)),
    FaultName.GRADIENT_ASCENT: ((2, 5.0), (8, 20.0), (25, 3.0), (LONGEST, 1.0)),
    FaultName.LR_BUMP: ((3, 10.0), (10, 40.0), (30, 8.0), (LONGEST, 20.0)),
    FaultName.WEIGHT_SCALE: ((1, 1.3), (1, 2.0), (1, 4.0), (1, 10.0)),
    FaultName.WEIGHT_NOISE: ((1, 0.3), (1, 0.8), (1, 2.0), (1, 5.0)),
    FaultName.MOMENT_RESET: ((1, 1e2), (1, 1e3), (1, 1e5), (1, 1e10)),
    FaultName.BIT_FLIP: ((1, 24.0), (1, 26.0), (1, 28.0), (1, 30.0)),
}


def healthy_runs() -> Iterator[Healthy]:
    """Every healthy run of the widened set."""
    for seed, condition in product(SEEDS, CONDITIONS):
        yield Healthy(seed, *condition)


def runs_of(healthy: Healthy) -> Iterator[Run]:
    """Its destabilised runs: every fault that its optimizer can have, in a form that goes round."""
    place = list(healthy_runs()).index(healthy)
    for number, (name, choices) in enumerate(MENU.items()):
        if name is FaultName.MOMENT_RESET and healthy.optimizer is not OptimizerName.ADAMW:
            continue  # no second moment in all of its weights
        length, strength = choices[(place + place // len(choices) + number) % len(choices)]
        yield Run(healthy, Fault(name, FORK + 1, length, strength))
