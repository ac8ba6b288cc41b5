"""Rebuilds a detector's state at a step of the history, from a snapshot and stored samples.

Reads only, and bounded: `MOST_ROWS` rows of `MOST_SEGMENTS` segments, however long the history is.
Where more rows lie behind the snapshot than that, or another release wrote it, the newest rows
alone are learned: a baseline is shaped by far fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.detection.sample import Sample
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.samples import newest_samples

MOST_ROWS: Final = 4000  # about a tenth of a second; six seconds where most of them are not finite
MOST_SEGMENTS: Final = 100


def replay(
    connection: sql.Connection, run_id: UUID, monitor: Monitor, step: int, path: Sequence[Place]
) -> bool:
    """Move `monitor` on from `step` of the path's last place to its first place; False, and
    `monitor` as it was, where more than `MOST_ROWS` lie between."""
    found = _newest(connection, run_id, path, step, MOST_ROWS + 1)
    if sum(map(len, found)) > MOST_ROWS:
        return False
    for part in reversed(found):
        monitor.observe(part)
    return True


def relearn(connection: sql.Connection, run_id: UUID, line: Sequence[Place]) -> Monitor:
    """The monitor that saw the newest `MOST_ROWS` rows of `line` alone."""
    monitor = Monitor()
    for part in reversed(_newest(connection, run_id, line, -1, MOST_ROWS)):
        monitor.observe(part)
    return monitor


def _newest(
    connection: sql.Connection, run_id: UUID, path: Sequence[Place], step: int, most: int
) -> list[Sequence[Sample]]:
    """The newest `most` rows of `path` behind `step` of its last place; newest place first."""
    found, left = list[Sequence[Sample]](), most
    for place, parent in pairwise([*path, None]):
        assert place is not None
        after = step if parent is None else parent.step
        found.append(newest_samples(connection, run_id, place, after + 1, left))
        left -= len(found[-1])
        if left <= 0:
            break
    return found
