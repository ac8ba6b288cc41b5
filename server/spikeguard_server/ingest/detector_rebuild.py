"""A run learned anew from its stored samples, where an older release wrote what the detector knew.

Law: reads only. What comes out is the monitor that this release would have had after the last
`RELEARN_STEPS` steps of the line of history, and what it would have said on the way; whoever asks
decides what of that is told. A baseline is shaped by far fewer rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import SegmentPoint
from spikeguard_server.domain.events import Event
from spikeguard_server.domain.monitor.monitor import Monitor
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.runs import SegmentRow
from spikeguard_server.store.samples import read_samples

RELEARN_STEPS: Final = 4000  # about a tenth of a second


def line_to(
    place: Place, segments: Sequence[SegmentRow], number_of: Mapping[str, int]
) -> list[Place]:
    """The places that history went through to get to `place`, newest first.

    As far back as `segments` are known; `number_of`: the attempts' numbers by their ids.
    """
    rows = {(row.attempt, row.segment): row for row in segments}
    line, seek = list[Place](), place
    while (row := rows.pop((seek.attempt, seek.segment), None)) is not None:
        line.append(seek)
        if row.parent is None or row.parent.segment.attempt not in number_of:
            break
        seek = place_of(row.parent, number_of)
    return line


def place_of(point: SegmentPoint, number_of: Mapping[str, int]) -> Place:
    """`point` by the numbers of the database; its attempt is one of `number_of`."""
    return Place(number_of[point.segment.attempt], point.segment.number, point.step)


def relearn(
    connection: sql.Connection, run_id: UUID, line: Sequence[Place]
) -> tuple[Monitor, list[Event]]:
    """The monitor at the first place of `line`, and what it said on the way there."""
    monitor, events = Monitor(), list[Event]()
    for place, first in reversed(_parts(line)):
        events += monitor.observe(
            read_samples(connection, run_id, place.attempt, place.segment, first, place.step)
        )
    return monitor, events


def _parts(line: Sequence[Place]) -> list[tuple[Place, int]]:
    """(place, first step to read there) of the last `RELEARN_STEPS` steps, newest first."""
    found, left = list[tuple[Place, int]](), RELEARN_STEPS
    for place, parent in pairwise([*line, None]):
        assert place is not None
        begins = 0 if parent is None else parent.step + 1
        first = max(begins, place.step - left + 1)
        found.append((place, first))
        left -= place.step - first + 1
        if left <= 0:
            break
    return found
