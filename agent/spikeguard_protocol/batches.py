"""Positions in the data order: what a step, or each of many steps, consumed.

Law: checked when made. Nearly always each step consumes as much as the one before and goes on where
that ended, so the batches of many steps travel as three numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from spikeguard_protocol.errors import ProtocolError
from spikeguard_protocol.identity import MAX_STEP, check_count


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Positions [first, end) in the data order; one position is one optimizer step's batch."""

    first: int
    end: int

    def __post_init__(self) -> None:
        if 0 <= self.first < self.end <= MAX_STEP:
            return  # a message holds hundreds of them
        check_count("first", self.first)
        check_count("end", self.end)
        if self.end <= self.first:
            raise ProtocolError(
                "end", f"lies after first ({self.first})", f"Got [{self.first}, {self.end})"
            )

    def __len__(self) -> int:
        return self.end - self.first

    def __contains__(self, position: int) -> bool:
        return self.first <= position < self.end

    def __str__(self) -> str:
        return f"[{self.first}, {self.end})"


@dataclass(frozen=True, slots=True)
class EvenRanges(Sequence[BatchRange]):
    """`length` ranges of `size` positions that follow one another from `first` on."""

    first: int
    size: int
    length: int

    def __post_init__(self) -> None:
        check_count("first", self.first)
        check_count("size", self.size, least=1)
        check_count("length", self.length)
        if self.first + self.size * self.length > MAX_STEP:
            raise ProtocolError("length", "leaves the last range below 2**53", f"Got {self.length}")

    @classmethod
    def of(cls, ranges: Sequence[BatchRange | None]) -> EvenRanges | None:
        """The same ranges, if they are even; None where they are not, or not all known."""
        if isinstance(ranges, EvenRanges):
            return ranges
        if not ranges or (start := ranges[0]) is None:
            return None
        size = len(start)
        for expected, found in enumerate(ranges):
            first = start.first + expected * size
            if found is None or found.first != first or found.end != first + size:
                return None
        return cls(start.first, size, len(ranges))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[BatchRange]:
        ends = range(self.first + self.size, self.first + self.size * (self.length + 1), self.size)
        return (BatchRange(end - self.size, end) for end in ends)

    @overload
    def __getitem__(self, at: int) -> BatchRange: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[BatchRange]: ...
    def __getitem__(self, at: int | slice) -> BatchRange | Sequence[BatchRange]:
        rows = range(self.length)[at]
        if isinstance(rows, int):
            first = self.first + rows * self.size
            return BatchRange(first, first + self.size)
        if rows.step != 1:
            return [self[row] for row in rows]
        return EvenRanges(self.first + rows.start * self.size, self.size, len(rows))
