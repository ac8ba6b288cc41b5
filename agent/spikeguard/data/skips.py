"""Which positions of the data order are left out, for the rest of the run, and by whose order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spikeguard.faults import Faults
from spikeguard.state.lineage import Progress
from spikeguard_protocol import BatchesSkipped, BatchRange, SegmentId, SegmentPoint

if TYPE_CHECKING:  # it brings torch, which `spikeguard journal` does without
    from spikeguard.data.reading import Reading
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from spikeguard_protocol import MAX_NAME, MAX_NAMES

NameBatch = Callable[[Any], Any]  # an item of the loader -> its name or names
LOOKED_AT = 10_000  # names of one item; the rest of what may be endless is not even counted


@dataclass(slots=True)
class Names:
    """The names of one position, in the order of its items."""

    kept: list[str] = field(default_factory=list)
    cut: int = 0  # left away, or shortened

    def add(self, given: Any) -> None:
        """Take up what one item is called; raise TypeError for what cannot name anything."""
        for name in islice(_each(given), LOOKED_AT):
            fits = len(self.kept) < MAX_NAMES
            self.cut += not fits or len(name) > MAX_NAME
            if fits:
                self.kept.append(name[:MAX_NAME])


def _each(given: Any) -> Iterator[str]:
    if isinstance(given, str | int):
        return iter((str(given),))
    if isinstance(given, bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"a name is a str or several of them, not {type(given).__name__}")
    return map(_name, given)


def _name(one: Any) -> str:
    return one if isinstance(one, str) else str(operator.index(one))


WAITING = 10_000  # records until the attempt has introduced itself


class Skips:
    """A union of ranges [first, end)."""

    def __init__(self, ranges: Iterable[BatchRange] = ()) -> None:
        self.ranges: list[BatchRange] = []
        self.commands: dict[BatchRange, str] = {}  # the first that asked for it, where known
        for skip in ranges:
            self.add(skip)

    def add(self, skip: BatchRange, command: str | None = None) -> None:
        """Leave `skip` out from now on."""
        if skip not in self.ranges:
            self.ranges.append(skip)
        if command is not None:
            self.commands.setdefault(skip, command)

    def end_of_skip(self, position: int) -> int:
        """The first position from `position` on that is not left out."""
        while covering := [r.end for r in self.ranges if r.first <= position < r.end]:
            position = max(covering)
        return position

    def leaves_out(self, position: int) -> bool:
        """Whether `position` is left out."""
        return any(position in skip for skip in self.ranges)

    def command_of(self, position: int) -> str | None:
        """Who asked first to leave `position` out, where that is known."""
        asked = (self.commands.get(skip) for skip in self.ranges if position in skip)
        return next((command for command in asked if command is not None), None)

    def by_command(self, first: int, end: int) -> Iterator[tuple[BatchRange, str | None]]:
        """[first, end), cut where another command asked for it."""
        batches = BatchRange(first, end)
        cuts = {cut for r in self.ranges for cut in (r.first, r.end) if cut in batches}
        for begin, stop in pairwise(sorted({first, *cuts, end})):
            yield BatchRange(begin, stop), self.command_of(begin)


class SkipReport:
    """Tells the server what rank 0 leaves out, with the names that the job gives it.

    The journal has the ranges; a position that is passed again is told again, and the server keeps
    the first. On other ranks nothing is named or told.
    """

    def __init__(
        self,
        name_batch: NameBatch | None,
        progress: Progress,
        skips: Skips,
        faults: Faults,
        *,
        tells: bool = True,
    ) -> None:
        self._name_batch = name_batch if tells else None
        self._progress, self._skips, self._faults, self._tells = progress, skips, faults, tells
        self._report: Callable[[BatchesSkipped], None] | None = None
        self._waiting: list[BatchesSkipped] = []
        self._range: BatchesSkipped | None = None  # without names; grows until it is told

    def begin(self, report: Callable[[BatchesSkipped], None]) -> None:
        """The attempt has introduced itself."""
        self._report, waiting, self._waiting = report, self._waiting, []
        for record in waiting:
            report(record)

    def name(self, names: Names, item: Any) -> None:
        """One item of a position that is left out."""
        if self._name_batch is not None:
            with self._faults.shield("name_batch"):
                names.add(self._name_batch(item))

    def leave(self, position: int, names: Names) -> None:
        """One position was left out."""
        command = self._skips.command_of(position)
        self._add(BatchRange(position, position + 1), command, names)

    def read_past(self, reading: Reading, position: int, items: int) -> None:
        """Read one position past; where the data ends within it, what was read is told too."""
        names, read = Names(), reading.read
        try:
            for _ in range(items):
                item = reading.next()
                reading.read += 1
                with self._faults.shield("data"):
                    self.name(names, item)
        finally:
            if reading.read > read:
                with self._faults.shield("data"):
                    self.leave(position, names)

    def jump(self, first: int, end: int) -> None:
        """[first, end) is left out without being read."""
        for batches, command in self._skips.by_command(first, end):
            self._add(batches, command, Names())

    def settle(self) -> None:
        """No more for now: tell the range that was collected."""
        with self._faults.shield("data"):
            collected, self._range = self._range, None
            if collected is not None:
                self._tell(collected)

    def _add(self, batches: BatchRange, command: str | None, names: Names) -> None:
        if not self._tells:
            return
        with self._faults.shield("data"):
            at, before = self._progress, self._range
            point = SegmentPoint(SegmentId(at.attempt, at.segment), at.steps)
            record = BatchesSkipped(batches, 0, point, command, tuple(names.kept), names.cut)
            follows = before is not None and before.batches.end == batches.first
            if before is not None and follows and replace(before, batches=batches) == record:
                self._range = replace(record, batches=BatchRange(before.batches.first, batches.end))
                return
            self.settle()
            if names.kept:
                self._tell(record)
            else:
                self._range = record

    def _tell(self, record: BatchesSkipped) -> None:
        if self._report is not None:
            self._report(record)
        elif len(self._waiting) < WAITING:
            self._waiting.append(record)
