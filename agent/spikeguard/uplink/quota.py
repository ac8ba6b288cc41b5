"""How much the outboxes of a run may take together: of the disk, and of memory where that fails.

Invariants
- One limit for the attempt that lives and for all that dead ones left. Over it messages are thinned
  level by level, the oldest attempt's before the next; whatever goes is counted and told.
- Called by the thread of the outbox that lives; it holds one outbox's lock at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from spikeguard.uplink.shedding import Level

MEMORY_BYTES = 16 * 2**20  # messages that the disk would not take
LEVELS = tuple(Level)[1:]  # of one nothing goes while something of the one before is left
THIN_PAUSE_S = 0.001  # after each segment that is thinned: the loop gets the interpreter back
FULL, THINNED = 1.0, 0.9  # shares of the limit: what is thinned has room for a while


class Bounded(Protocol):
    """An outbox."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes on disk and in memory."""

    def keep_up(self) -> bool:
        """Write down what came meanwhile; False if it is to close."""

    def thin(self, level: Level) -> Counter[str] | None:
        """Take what goes at `level` out of the oldest that holds some; what has gone, or None."""


class Earlier(Protocol):
    """What attempts that are dead left beside an outbox."""

    def size(self) -> int:
        """Bytes on disk, as far as known."""

    def held(self) -> AbstractContextManager[Sequence[Bounded]]:
        """Their outboxes, oldest attempt first, for as long as they are thinned."""

    def close(self) -> None:
        """Let go of what is held."""


class NoneEarlier:
    """Nobody left anything."""

    def size(self) -> int:
        """No bytes."""
        return 0

    @contextmanager
    def held(self) -> Iterator[Sequence[Bounded]]:
        """No outbox."""
        yield ()

    def close(self) -> None:
        """There is nothing to let go of."""


class Quota:
    """At most `limit` bytes on disk for one outbox and those of `earlier` attempts."""

    def __init__(
        self,
        limit: int,
        earlier: Earlier | None = None,
        tell: Callable[[str], object] = str,
    ) -> None:
        """`tell`: called with what was dropped, damaged or could not be written."""
        self.limit, self.tell = limit, tell
        self.dropped: Counter[str] = Counter()  # by what it was
        self._earlier = earlier or NoneEarlier()
        self._told = 0

    def bound(self, own: Bounded) -> None:
        """Thin out what is over the limit, and tell of whatever was dropped since."""
        if not self._fits(own):
            self._make_room(own)
        if self.dropped.total() > self._told:
            self._told = self.dropped.total()
            parts = ", ".join(f"{count} {what}" for what, count in sorted(self.dropped.items()))
            self.tell(f"the outbox was full and dropped {parts} so far")

    def fault(self, error: Exception) -> None:
        """Tell of what kept the outbox from being written or bounded; the next try is soon."""
        self.tell(f"the outbox was not kept up: {error!r}")

    def close(self) -> None:
        """Let go of what earlier attempts left."""
        self._earlier.close()

    def _make_room(self, own: Bounded) -> None:
        with self._earlier.held() as earlier:
            while own.keep_up() and not self._fits(own, THINNED):
                thinned = (box.thin(level) for level in LEVELS for box in (*earlier, own))
                lost = next((found for found in thinned if found is not None), None)
                if lost is None:
                    return
                self.dropped += lost
                time.sleep(THIN_PAUSE_S)

    def _fits(self, own: Bounded, share: float = FULL) -> bool:
        on_disk, in_memory = own.sizes
        all_on_disk = self._earlier.size() + on_disk
        return all_on_disk <= share * self.limit and in_memory <= share * MEMORY_BYTES
