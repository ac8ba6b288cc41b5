"""What goes first where the outbox is full, and what stays to the end.

Law: pure. The order is `Stage`'s: norms by layer, then slow signals, then whole samples but for
the surroundings of whatever stood out, then those too, then word of snapshots and checkpoints and
of batches left out, which the run's directory has anyway.
What an attempt cannot be understood without stays: commands' results, segments, its beginning
and its end. Whatever goes is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from statistics import median

from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    BatchesSkipped,
    CommandResult,
    Gap,
    LayerNorms,
    OptionalSignal,
    Record,
    Samples,
    SegmentStarted,
    Signal,
)

KEPT_SIGNALS = frozenset(
    {
        Signal.LOSS,
        Signal.LOSS_RANK_MAX,
        Signal.GRAD_NORM,
        Signal.GRAD_NORM_AT_STEP,
        Signal.LR,
        Signal.UPDATE_DROPPED,
        OptionalSignal.STEP_SKIPPED,
    }
)
BEFORE, AFTER = 50, 100  # samples around one that stood out
STANDS_OUT = 8.0  # median distances from the median: coarse, for the server judges it later
_FLOOR = 1e-3  # of the median, where a flat loss has no distances
_JUDGED = (Signal.LOSS.value, Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value)


class Stage(IntEnum):
    """How far a message was thinned out."""

    WHOLE = 0
    NO_LAYERS = 1  # without norms by layer
    NO_SLOW_SIGNALS = 2  # of samples, `KEPT_SIGNALS` only
    SURROUNDINGS = 3  # of samples, only those around what stood out
    NO_SAMPLES = 4
    NO_TARGETS = 5  # nothing but `_ESSENTIAL`


_ESSENTIAL = (CommandResult, SegmentStarted, AttemptStarted, AttemptEnded, Gap)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The samples of the messages before and after."""

    before: Sequence[Samples] = ()
    after: Sequence[Samples] = ()


def thinned(
    records: Iterable[Record], stage: Stage, around: Neighbours, watched: bool
) -> tuple[list[Record], Counter[str]]:
    """What is left of `records` at `stage`, and how much of what has gone.

    `watched`: the server asked for detail while they were made, so all of them are surroundings.
    """
    left = list(records)
    lost: Counter[str] = Counter()
    if stage >= Stage.NO_LAYERS:
        left, lost["layer norms"] = _without(left, LayerNorms)
    if stage >= Stage.NO_SLOW_SIGNALS:
        left, lost["slow signals"] = _of_kept_signals(left)
    if stage is Stage.SURROUNDINGS and not watched:
        left, lost["samples"] = _surroundings(left, around)
    if stage >= Stage.NO_SAMPLES:
        left, lost["samples"] = _without(left, Samples)
    if stage >= Stage.NO_TARGETS:
        essential: list[Record] = [r for r in left if isinstance(r, _ESSENTIAL)]
        lost["skipped batches"] = sum(isinstance(r, BatchesSkipped) for r in left)
        lost["targets"] = len(left) - len(essential) - lost["skipped batches"]
        left = essential
    return left, +lost


def samples_in(records: Iterable[Record]) -> list[Samples]:
    """The samples, in their order."""
    return [record for record in records if isinstance(record, Samples)]


def _without(records: list[Record], kind: type[Samples | LayerNorms]) -> tuple[list[Record], int]:
    left = [record for record in records if not isinstance(record, kind)]
    gone = [record for record in records if isinstance(record, kind)]
    return left, sum(len(r.steps) if isinstance(r, Samples) else 1 for r in gone)


def _of_kept_signals(records: list[Record]) -> tuple[list[Record], int]:
    """Values that go are counted, not signals."""
    lost, left = 0, list[Record]()
    for record in records:
        if isinstance(record, Samples):
            kept = {name: column for name, column in record.signals.items() if name in KEPT_SIGNALS}
            if kept or not record.signals:
                lost += (len(record.signals) - len(kept)) * len(record.steps)
                record = replace(record, signals=kept)
        left.append(record)
    return left, lost


def _surroundings(records: list[Record], around: Neighbours) -> tuple[list[Record], int]:
    own = samples_in(records)
    rows = [*around.before, *own, *around.after]
    near = _near(_outstanding(rows))
    first = len(around.before)
    kept = {id(row) for at, row in enumerate(own, first) if near[at]}
    left = [r for r in records if not isinstance(r, Samples) or id(r) in kept]
    return left, sum(len(row.steps) for row in own if id(row) not in kept)


def _near(marks: list[bool]) -> list[bool]:
    """Whether a mark lies at most `AFTER` places before, or `BEFORE` behind."""
    near = [False] * len(marks)
    for at, marked in enumerate(marks):
        if marked:
            first, end = max(0, at - BEFORE), min(len(marks), at + AFTER + 1)
            near[first:end] = [True] * (end - first)
    return near


def _outstanding(rows: Sequence[Samples]) -> list[bool]:
    """Samples with a value that is not finite, a dropped update, or a loss far from the others'."""
    losses = [_highest(row, Signal.LOSS.value) for row in rows]
    finite = [loss for loss in losses if math.isfinite(loss)]
    usual = median(finite) if finite else 0.0
    width = max(_distance(finite, usual), _FLOOR * abs(usual))
    return [
        _non_finite(row) or (math.isfinite(loss) and loss > usual + STANDS_OUT * width)
        for row, loss in zip(rows, losses, strict=True)
    ]


def _distance(values: Sequence[float], usual: float) -> float:
    return median(abs(value - usual) for value in values) if values else 0.0


def _highest(row: Samples, name: str) -> float:
    """NaN where there is none."""
    return max((v for v in row.signals.get(name, ()) if v is not None), default=math.nan)


def _non_finite(row: Samples) -> bool:
    values = [v for name in _JUDGED for v in row.signals.get(name, ()) if v is not None]
    dropped = any(row.signals.get(Signal.UPDATE_DROPPED.value, ()))
    return dropped or not all(map(math.isfinite, values))
