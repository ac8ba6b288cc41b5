"""The benchmark's own record of a run: what happened, step by step, beside the twin.

Pure. Rows come in the order trained; a step number that comes again begins a new branch. Nothing
here was said by the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from spikeguard_trainer.faults import Fault, parse_fault

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
