"""Which positions of the data order are left out, for the rest of the run."""

from __future__ import annotations

from collections.abc import Iterable

from spikeguard_protocol import BatchRange


class Ledger:
    """A union of ranges [first, end)."""

    def __init__(self, ranges: Iterable[BatchRange] = ()) -> None:
        self.ranges: list[BatchRange] = []
        for skip in ranges:
            self.add(skip)

    def add(self, skip: BatchRange) -> None:
        """Leave `skip` out from now on."""
        if skip not in self.ranges:
            self.ranges.append(skip)

    def end_of_skip(self, position: int) -> int:
        """The first position from `position` on that is not left out."""
        while covering := [r.end for r in self.ranges if r.first <= position < r.end]:
            position = max(covering)
        return position
