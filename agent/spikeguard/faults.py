"""Where the agent's own failures go: remembered, counted, logged once in a while, never raised.

`AttemptAborted` is a `SystemExit` and passes: training on mixed weights would be worse.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from numbers import Number
from types import TracebackType

from spikeguard_protocol.escaping import printable

log = logging.getLogger("spikeguard")
LINES = {"lines": True}  # `extra` of a message whose arguments are lines, escaped already
QUIET_S = 60.0  # between two log lines about the same place
MAX_SAID = 500  # characters of an error; torch names every backend that it knows


def _escape(record: logging.LogRecord) -> bool:
    """What a server, a file or an error says stays on the message's line, as it can be read."""
    if isinstance(record.args, tuple):
        keep = "\n" if hasattr(record, "lines") else ""
        record.args = tuple(_escaped(argument, keep) for argument in record.args)
    return True


def _escaped(argument: object, keep: str) -> object:
    return argument if isinstance(argument, Number) else printable(str(argument), keep)


log.addFilter(_escape)


class Shield:
    """One place of the loop's, or of a thread of ours, which not even `SystemExit` may end (`all`);
    keeps nothing between its uses, so it is made once."""

    __slots__ = ("_faults", "_kind", "_place")

    def __init__(self, faults: Faults, place: str, *, all: bool = False) -> None:
        self._faults, self._place = faults, place
        self._kind: type[BaseException] = BaseException if all else Exception

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, self._kind):
            return False
        self._faults.note(self._place, error)
        return True


class Faults:
    """Counts by place; `total` travels nowhere yet stays readable for the user."""

    def __init__(self, rank: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.newest: str | None = None
        self._rank = rank
        self._told: dict[str, float] = {}
        self._shields: dict[str, Shield] = {}

    def shield(self, place: str) -> Shield:
        """Swallow and count whatever goes wrong in `place`."""
        found = self._shields.get(place)
        if found is None:
            found = self._shields[place] = Shield(self, place)
        return found

    def shield_thread(self, place: str) -> Shield:
        """The same around a function of the job's own in a thread of ours: what ends a thread would
        end what else it does, and ends no process."""
        return Shield(self, place, all=True)

    def note(self, place: str, error: BaseException | str) -> None:
        """Count one failure; log the first of a place and then at most one a minute."""
        self.counts[place] += 1
        if isinstance(error, BaseException):
            error = f"{place}: {error!r}"[:MAX_SAID]
        self.newest = error
        now = time.monotonic()
        if now - self._told.get(place, -QUIET_S) < QUIET_S:
            return
        self._told[place] = now
        count = self.counts[place]
        log.warning("[rank %d] %s (%d so far)", self._rank, self.newest, count)
