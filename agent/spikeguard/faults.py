"""Where the agent's own failures go: remembered, counted, logged once in a while, never raised.

Law: whatever runs inside the loop runs through `Faults.shield`. `AttemptAborted` is a
`SystemExit` and passes: training on mixed weights would be worse than ending.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("spikeguard")
QUIET_S = 60.0  # between two log lines about the same place


class Faults:
    """Counts by place; `total` travels nowhere yet stays readable for the user."""

    def __init__(self, rank: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.newest: str | None = None
        self._rank = rank
        self._told: dict[str, float] = {}

    @contextmanager
    def shield(self, place: str) -> Iterator[None]:
        """Swallow and count whatever goes wrong in `place`."""
        try:
            yield
        except Exception as error:
            self.note(place, error)

    def note(self, place: str, error: BaseException | str) -> None:
        """Count one failure; log the first of a place and then at most one a minute."""
        self.counts[place] += 1
        self.newest = f"{place}: {error!r}" if isinstance(error, BaseException) else error
        now = time.monotonic()
        if now - self._told.get(place, -QUIET_S) < QUIET_S:
            return
        self._told[place] = now
        count = self.counts[place]
        log.warning("[rank %d] %s (%d so far)", self._rank, self.newest, count)
