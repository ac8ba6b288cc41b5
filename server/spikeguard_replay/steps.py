"""Which column of a log counts steps, and the step of each row."""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spikeguard_replay.log import Columns, Flags, are_whole
from spikeguard_replay.names import EPOCH, LAST, PROGRESS, STEP, TOKENS

ROW = "row"  # `--column step=row`: rows are counted


class _Kind(IntEnum):
    """How the numbers of a column run; the best first."""

    GOOD = auto()  # they grow, but where a run goes on from a checkpoint
    ANEW = auto()  # they start anew each epoch
    COARSE = auto()  # most rows repeat the one before
    NONE = auto()  # they count no steps


class Steps:
    """The step column of a log, as `asked` for or the likeliest: `values` for these `rows`."""

    def __init__(
        self, columns: Columns, judged: Flags, loss: str | None, asked: str | None
    ) -> None:
        self._columns, self._judged, self._loss = columns, judged, loss
        self.notes: list[str] = []
        self._epochs: str | None = None  # the column of the epochs in which steps start anew
        self.name = self._choose() if asked is None else self._given(asked)
        self.rows, self.values = self._whole(self.name)
        if self.name != ROW and self._shuffled(self.values):
            order = np.argsort(self.values)
            self.rows, self.values = self.rows[order], self.values[order]
            self.notes.append("rows are not in the order of their steps, sorted")
        if self.name != ROW and asked is None:
            if self._kind(self.name, True) is _Kind.ANEW:
                self._count_on()
            elif columns.short[self.name] == EPOCH:
                self.notes.append("epochs as steps: a spike within one hardly shows")
        if len(back := np.flatnonzero(np.diff(self.values) < 0)):
            first = f"first from {self.values[back[0]]} to {self.values[back[0] + 1]}"
            self.notes.append(f"goes back to an earlier step {len(back)} times, {first}")

    def _given(self, asked: str) -> str:
        """The column that a person names; raises `CommandFailed`."""
        columns = self._columns
        if asked == ROW and ROW not in columns:
            return ROW
        name = columns.asked(asked, f"for {STEP}")
        bad = np.flatnonzero(columns[name].measured & ~are_whole(columns[name].values))
        if len(bad):
            why = f"{columns[name].values[bad[0]]:g} is not a whole step number"
            what = f"name another column, or count rows: --column step={ROW}"
            raise columns.refused(name, bad[0], f"{why}: {what}")
        return name

    def _choose(self) -> str:
        named, short = self._columns.named(STEP), self._columns.short
        order = [name for name in named if short[name] not in LAST]
        order += [*self._columns.like(STEP), *named]
        if all(short[name] == EPOCH for name in order):
            counts = [one for one in self._columns.signals() if not TOKENS.search(short[one])]
            counts = [one for one in counts if one != self._loss]
            # A time in milliseconds grows as steps do.
            order += sorted(counts, key=lambda one: float(np.nanmax(self._columns[one].values)))
        kinds = {name: self._kind(name, name in named) for name in order}
        best = min(kinds, key=lambda name: kinds[name], default=ROW)
        return best if kinds.get(best, _Kind.NONE) is not _Kind.NONE else ROW

    def _kind(self, name: str, named: bool) -> _Kind:
        here = self._judged & self._columns[name].measured
        steps = self._columns[name].values[here]
        steps = steps[are_whole(steps)]
        moves = np.diff(steps if not self._shuffled(steps) else np.sort(steps))
        back = np.flatnonzero(moves < 0)
        if here.sum() < 0.9 * self._judged.sum() or len(steps) < 0.99 * here.sum():
            return _Kind.NONE
        if len(steps) != 1 and not moves.any():
            return _Kind.NONE
        if len(moves) and (moves != 0).mean() < 0.5:
            coarse = named and self._columns.short[name] not in (EPOCH, PROGRESS)
            return _Kind.COARSE if coarse else _Kind.NONE
        least = steps[0] + (max(1.0, np.median(moves[moves > 0])) if (moves > 0).any() else 0.0)
        anew = len(back) > 0 and (steps[back + 1] <= least).all()
        passes = self._epochs_pass(name)
        alike = np.ptp(steps[back]) <= 0.1 * steps[back].max() if anew else False
        if anew and (passes or (passes is None and len(back) > 1 and alike)):
            return _Kind.ANEW
        return _Kind.NONE if len(back) > max(3, len(steps) // 20) else _Kind.GOOD

    def _whole(self, name: str) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """The rows that have a step, and the steps."""
        if name == ROW:
            self.notes.append("rows are counted from 1")
            return np.arange(len(self._judged)), np.arange(1, len(self._judged) + 1)
        cells = self._columns[name]
        here, steps = cells.measured & are_whole(cells.values), cells.values.copy()
        for other in self._columns.named(STEP):  # lines of one step may call it by other names
            theirs = self._columns[other]
            more = theirs.measured & ~here & are_whole(theirs.values)
            if more.sum() > 0.2 * here.sum() and np.isin(theirs.values[more], steps[here]).all():
                steps[more] = theirs.values[more]
                here = here | more
        return np.flatnonzero(here), steps[here].astype(np.int64)

    def _count_on(self) -> None:
        """A column that starts anew each epoch is counted on over epochs."""
        passed = np.cumsum(np.diff(self.values, prepend=self.values[0]) < 0)
        if self._epochs is not None:  # where they go back, a run begins anew
            epochs = self._columns[self._epochs].values[self.rows]
            anew = np.diff(epochs, prepend=epochs[0]) < 0
            passed = passed - np.maximum.accumulate(np.where(anew, passed, 0))
        self.values = self.values + passed * (self.values.max() + (self.values.min() == 0))
        self.notes.append(f"`{self.name}` starts anew each epoch, counted on")

    @staticmethod
    def _shuffled(steps: NDArray[Any]) -> bool:
        """Whether no step comes twice and they are in no order of time, such as newest first."""
        back = (np.diff(steps) < 0).sum()
        return bool(back > max(3, len(steps) // 20) and len(np.unique(steps)) == len(steps))

    def _epochs_pass(self, name: str) -> bool | None:
        """Whether a column of epochs grows where `name` goes back; None if there is none."""
        mine = self._columns[name].measured
        found: bool | None = None
        for other in self._columns.numeric():
            short = self._columns.short[other]
            if other == name or (short.split("_")[0] not in (EPOCH, "ep") and EPOCH not in other):
                continue
            here, epochs = self._columns[other].measured & mine, self._columns[other].values
            back = np.diff(self._columns[name].values[here]) < 0
            grow = (np.diff(epochs[here])[back] > 0).sum() >= 0.9 * back.sum()
            counts = short in (EPOCH, "ep") or are_whole(epochs[here]).all()
            if counts and here.sum() >= 0.9 * mine.sum():
                if grow:
                    self._epochs = other
                    return True
                found = False
        return found
