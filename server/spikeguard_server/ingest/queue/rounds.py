"""Who is next among many: whoever has been served least, counted in seconds of work.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with measured costs. Law: knows keys and seconds,
no messages, no threads and no clock. Who was away begins where the others stand now: nobody saves
up turns, and nobody pays for what was spent before everyone came to rest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count

_MOST = 2000  # keys remembered: those that spent most


@dataclass(slots=True)
class ServiceOrder:
    """Keys that are ready, in the order of what each has spent. Costs O(log n) a turn."""

    _spent: dict[Hashable, float] = field(default_factory=dict)  # seconds, on one common scale
    _entries: dict[Hashable, int] = field(default_factory=dict)  # of whom is ready: its ticket
    _heap: list[tuple[float, int, Hashable]] = field(default_factory=list)
    _tickets: count[int] = field(default_factory=count)
    _present: float = 0.0  # what the one that was served last had spent

    def __len__(self) -> int:
        """Keys that are ready."""
        return len(self._entries)

    def enter(self, key: Hashable) -> None:
        """`key` has something to do and nobody does it; nothing happens if it is ready already."""
        if key not in self._entries:
            self._push(key)

    def hurry(self, key: Hashable) -> None:
        """`key` is next, if it is ready; what it spends is counted as ever."""
        if key in self._entries:
            ticket = self._entries[key] = next(self._tickets)
            heapq.heappush(self._heap, (-math.inf, ticket, key))

    def next(self) -> Hashable:
        """The ready key that has spent least, of equals the one that waits longest; it is no
        longer ready. Raise `IndexError` where none is."""
        while True:
            spent, ticket, key = heapq.heappop(self._heap)
            if self._entries.get(key) == ticket:
                del self._entries[key]
                self._present = max(self._present, spent)
                return key

    def charge(self, key: Hashable, seconds: float) -> None:
        """Count work for `key`; less than nothing where too much was counted before."""
        self._spent[key] = self._start_of(key) + seconds
        if key in self._entries:
            self._push(key)
        if len(self._spent) > 2 * _MOST:
            self._forget()

    def _start_of(self, key: Hashable) -> float:
        return max(self._present, self._spent.get(key, self._present))

    def _push(self, key: Hashable) -> None:
        ticket = self._entries[key] = next(self._tickets)
        heapq.heappush(self._heap, (self._start_of(key), ticket, key))

    def _forget(self) -> None:
        """Keep who is furthest ahead of the present; the rest begins there, or nearly."""
        furthest = heapq.nlargest(_MOST, self._spent.items(), key=lambda entry: entry[1])
        self._spent = {key: spent for key, spent in furthest if spent > self._present}
