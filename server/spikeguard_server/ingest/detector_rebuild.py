"""Rebuilds a detector's state at a step of the history, from a snapshot and stored samples.

Reads only, and bounded: `MOST_ROWS` rows of `MOST_SEGMENTS` segments and the seconds of a core that
the caller has left, however long the history is. Where more rows lie behind the snapshot than that,
or another release wrote it, the newest rows alone are learned: a baseline is shaped by far fewer.
What a run and a token may spend on it is a budget, so that asking again costs nobody else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from time import monotonic, thread_time
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.detection.sample import Sample
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.samples import newest_samples

MOST_ROWS: Final = 4000  # about a tenth of a second; six seconds where most of them are not finite
MOST_SEGMENTS: Final = 100
AT_ONCE: Final = 250  # rows judged before the clock is looked at


class OutOfTime(Exception):
    """No time is left to learn what the detector knew: it begins without."""


@dataclass(slots=True)
class Rebuilder:
    """Moves a monitor on by stored samples, `left_s` seconds of a core at most."""

    connection: sql.Connection
    run_id: UUID
    left_s: float

    def check(self) -> None:
        """Raise `OutOfTime` where none is left."""
        if self.left_s <= 0:
            raise OutOfTime

    def replay(self, monitor: Monitor, step: int, path: Sequence[Place]) -> bool:
        """Move `monitor` on from `step` of the path's last place to its first place; False, and
        `monitor` as it was, where more than `MOST_ROWS` lie between."""
        found = self._newest(path, step, MOST_ROWS + 1)
        if sum(len(part) for part in found) > MOST_ROWS:
            return False
        for part in reversed(found):
            self._observe(monitor, part)
        return True

    def relearn(self, line: Sequence[Place]) -> Monitor:
        """The monitor that saw the newest `MOST_ROWS` rows of `line` alone."""
        monitor = Monitor()
        for part in reversed(self._newest(line, -1, MOST_ROWS)):
            self._observe(monitor, part)
        return monitor

    def _newest(self, path: Sequence[Place], step: int, most: int) -> list[Sequence[Sample]]:
        """The newest `most` rows of `path` behind `step` of its last place; newest place first."""
        found, left = list[Sequence[Sample]](), most
        for place, parent in pairwise([*path, None]):
            assert place is not None
            after = step if parent is None else parent.step
            found.append(newest_samples(self.connection, self.run_id, place, after + 1, left))
            left -= len(found[-1])
            if left <= 0:
                break
        return found

    def _observe(self, monitor: Monitor, samples: Sequence[Sample]) -> None:
        for begin in range(0, len(samples), AT_ONCE):
            self.check()
            began_s = thread_time()
            monitor.observe(samples[begin : begin + AT_ONCE])
            self.left_s -= thread_time() - began_s


MOST_S: Final = 5.0  # that a run may spend at once
OF_TOKEN_S: Final = 20.0  # and all runs of one token: a cluster that comes back starts many at once
REFILL: Final = 0.02  # seconds of a core a second
_MOST_KEYS: Final = 4000


class RebuildBudgets:
    """The seconds of a core that runs and tokens have left for learning what is stored."""

    def __init__(self) -> None:
        self._spent: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # s, and when
        self._lock = Lock()

    def left(self, run_id: UUID, token: Hashable) -> float:
        """What this run of this token may spend now."""
        with self._lock:
            return min(MOST_S - self._debt(run_id), OF_TOKEN_S - self._debt(token))

    def charge(self, run_id: UUID, token: Hashable, seconds: float) -> None:
        """It spent `seconds`."""
        with self._lock:
            for key in (run_id, token):
                self._spent[key] = self._debt(key) + seconds, monotonic()
                self._spent.move_to_end(key)
            while len(self._spent) > _MOST_KEYS:
                self._spent.popitem(last=False)

    def _debt(self, key: Hashable) -> float:
        spent, at_s = self._spent.get(key, (0.0, 0.0))
        return max(0.0, spent - REFILL * (monotonic() - at_s))
