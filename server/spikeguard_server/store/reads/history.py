"""A run's tree of segments and its targets, as the API shows them. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.lineage import Lineage, lineage_of
from spikeguard_core.policy.situation import Target
from spikeguard_protocol import RunId
from spikeguard_server.store.commands import unfinished_commands
from spikeguard_server.store.incidents import attempts_by_number, find_incident
from spikeguard_server.store.runs import RunRow, SegmentRow, find_attempt, run_named
from spikeguard_server.store.situations import kept_targets, targets_with_health
from spikeguard_server.store.tables.core import deleted_runs, run_key, segments
from spikeguard_server.store.targets import targets_of

MAX_SEGMENTS = 1000  # of a run, that are shown
_G = segments.c


def existing_run(connection: sql.Connection, run: RunId) -> UUID:
    """The key of a run that exists; raise `NotFound` otherwise."""
    return run_named(connection, run).run_id


def recorded_run(connection: sql.Connection, run: RunId) -> UUID:
    """The key of a run that exists or was deleted; raise `NotFound` otherwise."""
    key = run_key(run)
    deleted = sql.select(deleted_runs.c.run_id).where(deleted_runs.c.run_id == key)
    if connection.scalar(deleted) is not None:
        return key
    return existing_run(connection, run)


def current_line(found: Sequence[SegmentRow]) -> Lineage:
    """The path from the root to the segment that is trained now."""
    for entry in found:
        if entry.trained:
            return lineage_of({other.id: other.parent for other in found}, entry.id)
    return Lineage({})


@dataclass(frozen=True, slots=True)
class ShownTarget:
    """Something that the run can go back to, with what is held of it."""

    row: Target
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
    on_line = {target.name: target for target in judged}
    incident = None
    if run.open_incident is not None:
        incident = find_incident(connection, run.run_id, run.open_incident)
    unfinished = unfinished_commands(connection, run.run_id)
    kept = kept_targets(connection, run, judged, incident, unfinished)  # as jobs are told
    found = [on_line.get(t.name, t) for t in targets_of(connection, run.run_id, current.number)]
    return [ShownTarget(t, t.name in kept, t.name in on_line) for t in reversed(found)]
