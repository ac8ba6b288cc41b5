"""A run's line of training as it lies in the database, for whoever judges what changed it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sql

from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.lineage import Lineage, lineage_of
from spikeguard_core.events import Trend
from spikeguard_protocol import SegmentId, SegmentPoint, Signal
from spikeguard_server.ingest.detection import past_monitor
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.incidents import Attempts, attempts_by_number
from spikeguard_server.store.runs import RunRow, segments_of
from spikeguard_server.store.samples import read_samples
from spikeguard_server.store.situations import current_lineage

Row = sql.Row[Any]


class RunHistory:
    """A run's line of training, as it is at hand under its lock."""

    def __init__(self, connection: sql.Connection, run: RunRow) -> None:
        self.connection, self.run = connection, run
        self.attempts: Attempts = attempts_by_number(connection, run.run_id)
        self.segments = segments_of(connection, run.run_id)
        instead = self.segments[-1].id if self.segments else None
        self.lineage = current_lineage(connection, run, self.attempts, instead)

    def point(self, note: Row) -> SegmentPoint:
        return SegmentPoint(self.attempts.segment(note.attempt, note.segment), note.step)

    def samples(self, first: int, last: int, lineage: Lineage | None = None) -> Iterator[Sample]:
        """Those of steps [first, last] of a `lineage`, in their order: of the one that the present
        weights descend from where none is given."""
        places = sorted(_stretches(self, lineage or self.lineage, first, last))
        for begin, end, attempt, segment in places:
            yield from read_samples(self.connection, self.run.run_id, attempt, segment, begin, end)


def _stretches(
    history: RunHistory, lineage: Lineage, first: int, last: int
) -> Iterator[tuple[int, int, int, int]]:
    """(first step, last step, attempt, segment) of each segment of the line."""
    for row in history.segments:
        if row.id not in lineage.last_steps or row.first_step is None or row.last_step is None:
            continue
        end = lineage.last_steps[row.id]
        stop = min(last, row.last_step if end is None else min(end, row.last_step))
        if max(first, row.first_step) <= stop:
            yield max(first, row.first_step), stop, row.attempt, row.id.number


def values_of(
    history: RunHistory, signal: Signal, first: int, last: int
) -> list[tuple[int, float]]:
    found = ((sample.step, sample.values.get(signal)) for sample in history.samples(first, last))
    return [(step, value) for step, value in found if value is not None]


def newest_step(history: RunHistory) -> int:
    """The newest step of the line that is trained now; -1 where none is known."""
    line = history.lineage.last_steps
    steps = [row.last_step for row in history.segments if line.get(row.id, -1) is None]
    return max((step for step in steps if step is not None), default=-1)


def undone_by(history: RunHistory, opened: SegmentId, target: int, last: int) -> list[Sample]:
    """Steps up to `last` that had been trained behind `target` before a rollback opened segment
    `opened`."""
    ids = [row.id for row in history.segments]
    before = ids[: ids.index(opened)]
    if not before:
        return []
    parents = dict(zip(ids, (row.parent for row in history.segments), strict=True))
    return list(history.samples(target + 1, last, lineage_of(parents, before[-1])))


def trend_at(history: RunHistory, point: SegmentPoint) -> Trend | None:
    """Where the loss was heading at `point`; None where too little was known, or a spike was
    open."""
    attempt = history.attempts.number(point.segment.attempt)
    here = Place(attempt, point.segment.number, point.step)
    past = past_monitor(history.connection, history.run.run_id, here)
    return None if past is None else past.heading(point.step)
