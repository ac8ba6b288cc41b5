"""What is injected, and what may truthfully be said and proposed about it.

Written by hand from what each fault does to the run, before any row was looked at, and never read
from the product's own tables: a table that is held against itself cannot be wrong.

The benchmark's own record of a run: what happened, step by step, beside the twin.

Pure. Rows come in the order trained; a step number that comes again begins a new branch. Nothing
here was said by the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from spikeguard_trainer.faults import Fault, FaultName, parse_fault

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


BACK = 0.05  # nats above the twin up to which a run is back
DAMAGED = 0.15  # from which it is not; in between both verdicts stand
SETTLED_STEPS = 40  # rows that a verdict is taken over
SMOOTH = 9  # rows


@dataclass(frozen=True, slots=True)
class Row:
    """One trained step."""

    step: int
    position: int  # of the batch
    loss: float  # nats a byte
    at: float  # clock after it, seconds
    took: float  # seconds since the row before
    changed: bool  # whether the update reached the weights


@dataclass(frozen=True, slots=True)
class Return:
    """A rollback as the rows show it."""

    row: int  # index of the first row trained afterwards
    newest: int  # newest step before it
    target: int  # step that it went back to

    @property
    def steps(self) -> int:
        return self.newest - self.target


class StepLog:
    """One run's rows, and the losses of its twin by step."""

    def __init__(
        self,
        steps: Sequence[dict[str, float]],
        updates: Sequence[tuple[float, int]],
        twin: Sequence[dict[str, float]],
        restarts: Sequence[int] = (),
    ) -> None:
        before = updates[0][0] if updates else 0.0
        self.rows: list[Row] = []
        for plain, (at, changed) in zip(steps, updates, strict=False):
            step, position = int(plain["step"]), int(plain["position"])
            took = 0.0 if len(self.rows) in restarts else at - before  # a start is no step
            self.rows.append(Row(step, position, plain["loss"], at, took, bool(changed)))
            before = at
        self.restarts = frozenset(restarts)  # rows that the job was killed before
        self.twin = {int(row["step"]): row["loss"] for row in twin}

    @cached_property
    def returns(self) -> list[Return]:
        """Every time that the step number went back by a command."""
        pairs = zip(self.rows, self.rows[1:], strict=False)
        return [
            Return(index, before.step, row.step - 1)
            for index, (before, row) in enumerate(pairs, start=1)
            if row.step <= before.step and index not in self.restarts
        ]

    @cached_property
    def retrained(self) -> int:
        """Steps trained again."""
        return sum(back.steps for back in self.returns)

    @cached_property
    def retrained_s(self) -> float:
        """What the abandoned rows had taken, seconds: the work that was lost."""
        return sum(
            row.took
            for back in self.returns
            for row in self.rows[: back.row]
            if row.step > back.target and not self._undone_before(row, back)
        )

    def _undone_before(self, row: Row, back: Return) -> bool:
        index = self.rows.index(row)
        return any(
            other.row < back.row and index < other.row and row.step > other.target
            for other in self.returns
        )

    @cached_property
    def dropped(self) -> list[Row]:
        """Rows whose update did not reach the weights."""
        return [row for row in self.rows if not row.changed]

    def excess(self, row: Row) -> float:
        """Loss above the twin's at the same step, nats."""
        return row.loss - self.twin.get(row.step, math.nan)

    @cached_property
    def smooth(self) -> list[float]:
        """The excess as a running median, by row."""
        raw = [self.excess(row) for row in self.rows]
        half = SMOOTH // 2
        return [
            median(
                [x if math.isfinite(x) else math.inf for x in raw[max(0, i - half) : i + half + 1]]
            )
            for i in range(len(raw))
        ]

    def level(self, first: int) -> float:
        """Mean excess over the settled rows from index `first`; the last ones where few are left.

        Not finite where a loss is not.
        """
        rows = self.rows[first : first + SETTLED_STEPS]
        if len(rows) < SETTLED_STEPS // 2:
            rows = self.rows[-SETTLED_STEPS:]
        return fmean(self.excess(row) for row in rows)


def fault_rows(log: StepLog, faults: Sequence[str]) -> list[tuple[Fault, int]]:
    """Each fault with the index of the row that it began in; those that never came are left out."""
    found = []
    for text in faults:
        fault = parse_fault(text)
        first, step = 0, fault.step
        if fault.after_rollback:
            if not log.returns:
                continue
            first, step = log.returns[0].row, log.returns[0].target + fault.step
        index = next((i for i in range(first, len(log.rows)) if _hit(log.rows[i], fault, step)), -1)
        if index >= 0:
            found.append((fault, index))
    return sorted(found, key=lambda pair: pair[1])


def _hit(row: Row, fault: Fault, step: int) -> bool:
    return fault.hits_position(row.position) if fault.on_data else row.step == step
