"""How much the outboxes of a run may take together: of the disk, and of memory where that fails.

Law: one limit for the attempt that lives and for all that dead ones left. Over it messages are
thinned out stage by stage, the oldest attempt's before the next; whatever goes is counted and told.
Called by the thread of the outbox that lives; it holds one outbox's lock at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from spikeguard.uplink.thinning import Stage

MEMORY_BYTES = 16 * 2**20  # messages that the disk would not take
FULL, THINNED = 1.0, 0.9  # shares of the limit: what is thinned has room for a while


class Bounded(Protocol):
    """An outbox."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes on disk and in memory."""

    def keep_up(self) -> bool:
        """Write down what came meanwhile; False if it is to close."""

    def thin(self, stage: Stage, fits: Callable[[], bool]) -> Counter[str]:
        """Thin messages out as far as `stage`, the oldest first, until it `fits`; what has gone."""


class Earlier(Protocol):
    """What attempts that are dead left beside an outbox."""

    def size(self) -> int:
        """Bytes on disk, as far as known."""

    def held(self) -> AbstractContextManager[Sequence[Bounded]]:
        """Their outboxes, oldest attempt first, for as long as they are thinned out."""

    def close(self) -> None:
        """Let go of what is held."""


class Nothing:
    """Left by nobody."""

    def size(self) -> int:
        """No bytes."""
        return 0

    @contextmanager
    def held(self) -> Iterator[Sequence[Bounded]]:
        """No outbox."""
        yield ()

    def close(self) -> None:
        """There is nothing to let go of."""


class Room:
    """At most `limit` bytes on disk for one outbox and those of `earlier` attempts."""

    def __init__(
        self,
        limit: int,
        earlier: Earlier | None = None,
        tell: Callable[[str], object] = str,
    ) -> None:
        """`tell`: called with what was dropped."""
        self._limit, self._earlier, self._tell = limit, earlier or Nothing(), tell
        self.dropped: Counter[str] = Counter()  # by what it was
        self._told = 0

    def bound(self, own: Bounded) -> None:
        """Thin out what is over the limit, and tell of whatever was dropped since."""
        if not self._fits(own):
            self._make(own)
        if self.dropped.total() > self._told:
            self._told = self.dropped.total()
            parts = ", ".join(f"{count} {what}" for what, count in sorted(self.dropped.items()))
            self._tell(f"it was full and dropped {parts} so far")

    def fault(self, error: Exception) -> None:
        """Tell of what kept the outbox from being written or bounded; the next try is soon."""
        self._tell(f"the outbox was not kept up: {error!r}")

    def close(self) -> None:
        """Let go of what earlier attempts left."""
        self._earlier.close()

    def _make(self, own: Bounded) -> None:
        with self._earlier.held() as earlier:

            def fits() -> bool:
                return not own.keep_up() or self._fits(own, THINNED)

            for stage in list(Stage)[1:]:
                for box in (*earlier, own):
                    self.dropped += box.thin(stage, fits)

    def _fits(self, own: Bounded, share: float = FULL) -> bool:
        on_disk, in_memory = own.sizes
        all_on_disk = self._earlier.size() + on_disk
        return all_on_disk <= share * self._limit and in_memory <= share * MEMORY_BYTES
