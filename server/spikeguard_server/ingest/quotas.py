"""Quotas that clients share: the total, and what each of them holds.

Law: nobody holds more of it than is left to all others. What does not fit is refused at once with
the limit that it broke.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from spikeguard_server.errors import Busy


class SharedQuota:
    """Counts what of `most` is held, by client. Refusals name it by `what`, in the plural, and tell
    who is refused to do `remedy`."""

    def __init__(self, most: int, what: str, remedy: str = "Wait, then send it again") -> None:
        self._most, self._what, self._remedy = most, what, remedy
        self._held = 0
        self._of: Counter[Hashable] = Counter()  # those who hold any

    def take(self, client: Hashable, size: int = 1) -> None:
        """Raise `Busy` where there is no room, or where this client would hold too much of it."""
        free, mine = self._most - self._held, self._of[client]
        if size > free:
            raise self._busy(f"{self._most} {self._what} already", self._most)
        if mine + size > free:
            raise self._busy(
                f"{mine} {self._what} already from here, and room for {free} is left to all others",
                mine,
            )
        self._held += size
        self._of[client] += size

    @property
    def held(self) -> int:
        """What all clients hold."""
        return self._held

    def give_back(self, client: Hashable, size: int = 1) -> None:
        """So much of it is free again."""
        self._held -= size
        self._of[client] -= size
        if not self._of[client]:
            del self._of[client]

    def _busy(self, told: str, limit: int) -> Busy:
        return Busy(told, self._remedy, limit=limit)
