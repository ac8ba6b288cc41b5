"""A run's tree of segments and its targets, as the API shows them. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.lineage import Lineage, lineage_of
from spikeguard_protocol import Health, RunId, SegmentId, SegmentPoint
from spikeguard_server.errors import NotFound
from spikeguard_server.store.commands import unfinished_commands
from spikeguard_server.store.incidents import attempts_by_number, find_incident
from spikeguard_server.store.paging import Row
from spikeguard_server.store.runs import RunRow, find_attempt, read_point, run_row
from spikeguard_server.store.situations import kept_targets, targets_with_health
from spikeguard_server.store.tables.core import attempts, deleted_runs, run_key, runs, segments
from spikeguard_server.store.targets import TargetRow, targets_of

MAX_SEGMENTS = 1000  # of a run, that are shown
_G = segments.c


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """A segment with its attempt's number and id."""

    id: SegmentId
    attempt: int  # number of the attempt within the run
    parent: SegmentPoint | None
    row: Row  # of the segment; `trained`: the run is followed on it


def existing_run(connection: sql.Connection, run: RunId) -> UUID:
    """The key of a run that exists; raise `NotFound` otherwise."""
    key = run_key(run)
    if connection.scalar(sql.select(runs.c.run_id).where(runs.c.run_id == key)) is None:
        raise _no_run(run)
    return key


def run_named(connection: sql.Connection, run: RunId) -> RunRow:
    """A run that exists; raise `NotFound` otherwise."""
    if (row := run_row(connection, run_key(run))) is not None:
        return row
    raise _no_run(run)


def _no_run(run: RunId) -> NotFound:
    return NotFound(f"There is no run {run}", "`spikeguard runs` lists those there are")


def recorded_run(connection: sql.Connection, run: RunId) -> UUID:
    """The key of a run that exists or was deleted; raise `NotFound` otherwise."""
    key = run_key(run)
    deleted = sql.select(deleted_runs.c.run_id).where(deleted_runs.c.run_id == key)
    if connection.scalar(deleted) is not None:
        return key
    return existing_run(connection, run)


def read_segments(connection: sql.Connection, run_id: UUID) -> list[SegmentLine]:
    """The newest segments of a run, oldest first. Who looks at the run is shown each of them."""
    newest = _segments(run_id).limit(MAX_SEGMENTS)
    return [_segment(row) for row in reversed(connection.execute(newest).all())]


def named_segments(
    connection: sql.Connection, run_id: UUID, places: Collection[tuple[int, int]]
) -> list[SegmentLine]:
    """The segments of these attempts and numbers, however old, oldest first."""
    here = sql.tuple_(segments.c.attempt, segments.c.segment).in_(places)
    found = connection.execute(_segments(run_id).where(here)).all()
    return [_segment(row) for row in reversed(found)]


def _segments(run_id: UUID) -> sql.Select[Any]:
    attempt = (attempts.c.run_id == _G.run_id) & (attempts.c.number == _G.attempt)
    trained = (runs.c.current_attempt == _G.attempt) & (runs.c.current_segment == _G.segment)
    return (
        sql.select(segments, attempts.c.id, trained.label("trained"))
        .join(attempts, attempt)
        .join(runs, runs.c.run_id == _G.run_id)
        .where(segments.c.run_id == run_id)
        .order_by(segments.c.attempt.desc(), segments.c.segment.desc())
    )


def current_line(found: Sequence[SegmentLine]) -> Lineage:
    """The path from the root to the segment that is trained now."""
    for entry in found:
        if entry.row.trained:
            return lineage_of({other.id: other.parent for other in found}, entry.id)
    return Lineage({})


def _segment(row: Row) -> SegmentLine:
    return SegmentLine(SegmentId(row.id, row.segment), row.attempt, read_point(row), row)


@dataclass(frozen=True, slots=True)
class ShownTarget:
    """Something that the run can go back to, with what is held of it."""

    row: TargetRow
    attempt_id: str
    health: Health
    damage: str | None
    protected: bool  # agents keep it: a decision may still want it
    on_line: bool  # whether the present weights descend from it


def read_targets(connection: sql.Connection, run: RunRow) -> list[ShownTarget]:
    """The targets of a run that exist, newest first. One off the line that is trained now can never
    be named, and is suspect."""
    current = find_attempt(connection, run.run_id, run.current_attempt)
    if current is None:
        return []
    known = attempts_by_number(connection, run.run_id)
    judged = targets_with_health(connection, run, current, known)
    marks = {target.name: (target.health, target.damage) for target in judged}
    incident = None
    if run.open_incident is not None:
        incident = find_incident(connection, run.run_id, run.open_incident)
    unfinished = unfinished_commands(connection, run.run_id)
    kept = kept_targets(connection, run, judged, incident, unfinished)  # as jobs are told
    found = reversed(targets_of(connection, run.run_id, current.number))
    return [
        ShownTarget(
            t,
            known.ids[t.attempt],
            *marks.get(t.name, (Health.SUSPECT, t.damage)),
            t.name in kept,
            t.name in marks,
        )
        for t in found
    ]
