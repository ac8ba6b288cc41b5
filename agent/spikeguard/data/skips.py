"""Which positions of the data order are left out, for the rest of the run, and by whose order."""

from __future__ import annotations

from collections.abc import Iterable

from spikeguard_protocol import BatchRange


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
