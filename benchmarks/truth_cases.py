"""What is injected, and what may truthfully be said and proposed about it.

Written by hand from what each fault does to the run, before any row was looked at, and never read
from the product's own tables: a table that is held against itself cannot be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spikeguard_trainer.faults import Fault, FaultName

DELAYS = (0, 100, 350)  # training steps from the proposal to the decision
SEEDS = (0, 1)

DATA = "data"
RATE = "rate"
UPHILL = "uphill"  # at a multiple of the rate, which is measured, whenever those batches are met
UPHILL_AT_RATE = "uphill_at_rate"
WEIGHTS = "weights"
MOMENT = "moment"
NON_FINITE = "non_finite"


@dataclass(frozen=True, slots=True)
class Truth:
    """What one fault allows to be said. Words are matched in lower case."""

    causes: frozenset[str]  # names of `spikeguard_protocol.Cause` that are true
    skips: bool  # whether leaving batches out is a remedy
    lowers_rate: bool  # whether going on at a lower rate is one
    about: tuple[str, ...]  # a claim about the cause speaks of one of these
    not_about: tuple[str, ...]  # and of none of these
    transient: bool = False  # whether the fault does no lasting harm to a guarded run


_OF_DATA = ("look at the data", "look at the batch", "batches around step", "exclude")
_OF_HARDWARE = ("test the device", "hardware", "drain", "host memory")

TRUTHS: dict[str, Truth] = {
    DATA: Truth(
        causes=frozenset({"bad_batch", "rare_tokens"}),
        skips=True,
        lowers_rate=False,
        about=("batch", "data", "token", "document"),
        not_about=_OF_HARDWARE,
    ),
    RATE: Truth(
        causes=frozenset({"lr_too_high"}),
        skips=False,
        lowers_rate=True,
        about=("learning rate", "rate", "schedule", "warm-up"),
        not_about=(*_OF_DATA, *_OF_HARDWARE),
    ),
    UPHILL: Truth(
        causes=frozenset({"lr_too_high", "bad_batch"}),
        skips=True,
        lowers_rate=True,
        about=("learning rate", "rate", "schedule", "batch", "data"),
        not_about=_OF_HARDWARE,
    ),
    UPHILL_AT_RATE: Truth(
        causes=frozenset({"bad_batch"}),  # which push up; the rate did not move
        skips=True,
        lowers_rate=False,
        about=("batch", "data"),
        not_about=_OF_HARDWARE,
    ),
    WEIGHTS: Truth(
        causes=frozenset({"weight_corruption", "layer_fault"}),
        skips=False,
        lowers_rate=False,
        about=("weight", "device", "rank", "hardware", "layer", "memory"),
        not_about=_OF_DATA,
    ),
    MOMENT: Truth(
        causes=frozenset({"stale_second_moment"}),
        skips=False,
        lowers_rate=True,
        about=("second moment", "beta2", "adam", "optimizer", "warm"),
        not_about=(*_OF_DATA, *_OF_HARDWARE),
    ),
    NON_FINITE: Truth(
        causes=frozenset({"non_finite_source"}),
        skips=False,
        lowers_rate=False,
        about=("finite", "nan", "infin", "overflow"),
        not_about=_OF_DATA,
        transient=True,
    ),
}
CLASS_OF: dict[FaultName, str] = {
    FaultName.BAD_BATCH: DATA,
    FaultName.BAD_BATCH_REPEATED: DATA,
    FaultName.BAD_BATCH_SHUFFLED: DATA,
    FaultName.GRADIENT_ASCENT: UPHILL,
    FaultName.LR_BUMP: RATE,
    FaultName.WEIGHT_SCALE: WEIGHTS,
    FaultName.WEIGHT_NOISE: WEIGHTS,
    FaultName.BIT_FLIP: WEIGHTS,
    FaultName.MOMENT_RESET: MOMENT,
    FaultName.NAN_GRAD: NON_FINITE,
}


def class_of(fault: Fault) -> str:
    """What kind of thing went wrong. Uphill at the rate that was meant raises no rate."""
    found = CLASS_OF[fault.name]
    return UPHILL_AT_RATE if found == UPHILL and fault.strength <= 1.0 else found


@dataclass(frozen=True, slots=True)
class Case:
    """One run: what comes, and when, as steps after the first fault."""

    name: str
    injected: tuple[tuple[str, int, str], ...]  # (fault, steps after the first, ":LENGTH:STRENGTH")
    answered: bool = True  # whether anybody ever decides
    killed_after: int | None = None  # steps from the proposal to a SIGKILL; started again at once

    def faults(self, first: int) -> Sequence[str]:
        """As the trainer takes them. A negative offset counts from the first rollback."""
        return [
            f"{name}@rollback+{-after}{size}" if after < 0 else f"{name}@{first + after}{size}"
            for name, after, size in self.injected
        ]


SINGLES = tuple(
    Case(name.replace(".", "-").replace("_", "-"), ((name, 0, size),))
    for name, size in (
        ("bad_batch", ":8:1"),
        ("bad_batch.repeated", ":20:1"),
        ("bad_batch.shuffled", ":60:1"),
        ("gradient_ascent", ":5:30"),
        ("lr_bump", ":10:40"),
        ("weight_scale", ":1:5"),
        ("weight_noise", ":1:3"),
        ("moment_reset", ":3:1e12"),
        ("bit_flip", ":1:30"),
        ("nan_grad", ":3:1"),
    )
)
PAIRS = (
    Case("bad-batch-then-lr-bump", (("bad_batch", 0, ":3:1"), ("lr_bump", 60, ":10:40"))),
    Case("nan-grad-with-weight-noise", (("nan_grad", 0, ":2:1"), ("weight_noise", 2, ":1:3"))),
    Case("bad-batch-twice", (("bad_batch.repeated", 0, ":6:1"), ("bad_batch", 40, ":6:1"))),
    Case("lr-bump-then-bit-flip", (("lr_bump", 0, ":10:40"), ("bit_flip", 30, ":1:30"))),
)
AFTER_ROLLBACK = (
    Case("lr-bump-after-rollback", (("weight_noise", 0, ":1:3"), ("lr_bump", -45, ":10:40"))),
    Case("bit-flip-after-rollback", (("lr_bump", 0, ":10:40"), ("bit_flip", -45, ":1:30"))),
)
DECISIONS = (
    Case("uphill-for-long", (("gradient_ascent", 0, ":60:1"),)),  # the proposal is revised
    Case("bit-flip-unanswered", (("bit_flip", 0, ":1:30"),), answered=False),
    Case("weight-noise-killed", (("weight_noise", 0, ":1:3"),), killed_after=60),
)
CASES = (*SINGLES, *PAIRS, *AFTER_ROLLBACK, *DECISIONS)
