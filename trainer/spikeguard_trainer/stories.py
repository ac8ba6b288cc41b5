"""What each fault does to a `tiny` run, for tests and demonstrations that need a known story.

    python -m spikeguard_trainer.stories [SEED ...]    measures the table anew

Law: truth comes from the pair, the same seed with and without the fault, never from a detector.
"""

from __future__ import annotations

import copy
import math
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from spikeguard_trainer.data import BatchLoader, Bytes, read_corpus
from spikeguard_trainer.faults import Fault, parse_fault
from spikeguard_trainer.inject import FaultInjector, corrupt_batch
from spikeguard_trainer.model import Transformer
from spikeguard_trainer.presets import PRESETS
from spikeguard_trainer.schedule import make_optimizer, make_scheduler

PRESET = "tiny"
STEPS = 420
FAULT_STEP = 220
LATE = 40  # steps at the end over which the excess is taken


class Fate(StrEnum):
    """What becomes of the loss if nobody acts."""

    UNMOVED = "unmoved"  # never stands out
    HEALS = "heals"  # stands out, and is back within 0.03 nats of its twin
    LINGERS = "lingers"  # ends at least 0.1 nats above its twin


@dataclass(frozen=True, slots=True)
class Story:
    """A fault without its step, and what it does when it comes at step 220 of 420."""

    fault: str  # NAME@{step}:LENGTH:STRENGTH
    fate: Fate
    excess: float  # nats above the twin over the last 40 steps, seed 0

    def at(self, step: int) -> Fault:
        """The fault, made to come at `step`."""
        return parse_fault(self.fault.format(step=step))


STORIES: tuple[Story, ...] = (
    Story("bad_batch@{step}:3:1", Fate.HEALS, 0.01),
    Story("bad_batch.repeated@{step}:3:1", Fate.HEALS, 0.0),
    Story("bad_batch.shuffled@{step}:3:1", Fate.HEALS, 0.01),
    Story("gradient_ascent@{step}:2:2", Fate.UNMOVED, 0.01),
    Story("gradient_ascent@{step}:5:30", Fate.LINGERS, 0.72),
    Story("lr_bump@{step}:3:10", Fate.UNMOVED, -0.01),
    Story("lr_bump@{step}:10:40", Fate.LINGERS, 0.45),
    Story("weight_scale@{step}:1:1.3", Fate.UNMOVED, -0.02),
    Story("weight_scale@{step}:1:5", Fate.LINGERS, 0.37),
    Story("weight_noise@{step}:1:0.2", Fate.UNMOVED, 0.0),
    Story("weight_noise@{step}:1:3", Fate.LINGERS, 0.56),
    Story("moment_reset@{step}:1:1e3", Fate.UNMOVED, -0.01),
    Story("moment_reset@{step}:1:1e12", Fate.LINGERS, 0.34),
    Story("moment_reset@{step}:3:1e12", Fate.LINGERS, 1070.77),
    Story("bit_flip@{step}:1:25", Fate.UNMOVED, 0.0),
    Story("bit_flip@{step}:1:30", Fate.LINGERS, 3.36),
    Story("gradient_jump@{step}:1:100", Fate.UNMOVED, 0.0),  # clipped to a norm of 1
    Story("nan_grad@{step}:3:1", Fate.UNMOVED, 0.0),
)


@dataclass
class Course:
    """A run that can be taken back to where it forked."""

    seed: int
    twin: list[float]  # losses from the fault's step on
    fork: tuple[Any, ...]  # states just before it

    @classmethod
    def train(cls, seed: int) -> Course:
        """Train the twin, keeping the states before `FAULT_STEP`."""
        parts = _fresh(seed)
        _train(parts, seed, 0, FAULT_STEP - 1, ())
        fork = copy.deepcopy(tuple(part.state_dict() for part in parts))
        return cls(seed, _train(parts, seed, FAULT_STEP - 1, STEPS, ()), fork)

    def excess(self, fault: Fault) -> list[float]:
        """Loss above the twin's, nats, for every step from the fault's on."""
        parts = _fresh(self.seed)
        for part, state in zip(parts, self.fork, strict=True):
            part.load_state_dict(copy.deepcopy(state))
        losses = _train(parts, self.seed, FAULT_STEP - 1, STEPS, (fault,))
        return [hit - calm for hit, calm in zip(losses, self.twin, strict=True)]


def fate_of(excess: list[float]) -> tuple[Fate | None, float]:
    """The fate that `excess` shows (None: between two), and its mean over the last steps."""
    late = sum(excess[-LATE:]) / LATE
    if not late < 0.1:
        return Fate.LINGERS, late
    if late > 0.03:
        return None, late
    return (Fate.HEALS if max(excess[:60]) > 1.0 else Fate.UNMOVED), late


@cache
def _text() -> Bytes:
    return read_corpus().training


def _fresh(seed: int) -> tuple[Any, ...]:
    preset = PRESETS[PRESET]
    torch.manual_seed(seed)
    model = Transformer(preset.shape)
    optimizer = make_optimizer(model, lr=preset.lr, beta2=0.95)
    return model, optimizer, make_scheduler(optimizer, warmup=preset.warmup, total=STEPS)


def _train(
    parts: tuple[Any, ...], seed: int, first: int, last: int, faults: tuple[Fault, ...]
) -> list[float]:
    """Steps first+1 to last without a guard but for dropping what is not finite; their losses."""
    (model, optimizer, scheduler), preset = parts, PRESETS[PRESET]
    loader = BatchLoader(
        _text(),
        rows=preset.batch,
        context=preset.shape.context,
        seed=seed,
        corrupt=partial(corrupt_batch, faults, seed),
    )
    loader.load_state_dict({"position": first})
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        memory = Path(folder) / "faults.json"
        injector = FaultInjector(faults, model, optimizer, memory=memory, seed=seed)
        for step in range(first + 1, last + 1):
            batch = next(loader)
            loss = model(batch.tokens, batch.targets)
            loss.backward()
            with injector.strike(step, batch.position):
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if math.isfinite(norm.item()):
                    optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
    return losses


def main(seeds: list[int]) -> None:
    """Print every story as it goes with each seed."""
    torch.set_num_threads(1)
    for seed in seeds:
        course = Course.train(seed)
        for story in STORIES:
            excess = course.excess(story.at(FAULT_STEP))
            fate, late = fate_of(excess)
            print(
                f"seed {seed}  {story.fault.format(step=FAULT_STEP):32} {fate or 'between':8} "
                f"peak {max(excess[:60]):+9.2f}  end {late:+9.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [0, 1, 2])
