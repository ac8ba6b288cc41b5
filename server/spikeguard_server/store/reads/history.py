"""A run's line of segments, its targets, and what was done to it. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.policy.situation import Target
from spikeguard_protocol import IncidentId, RunId
from spikeguard_server.entities import CommandRow, IncidentRow
from spikeguard_server.store.commands import commands_by_key, unfinished_commands
from spikeguard_server.store.incidents import find_incident, read_incident
from spikeguard_server.store.notes import effects_of
from spikeguard_server.store.paging import PageWanted, Row, read_page
from spikeguard_server.store.runs import RunRow, find_attempt, run_named
from spikeguard_server.store.situations import kept_targets, targets_of, targets_with_health
from spikeguard_server.store.tables.core import commands, deleted_runs, notes, run_key

MAX_SEGMENTS = 1000  # of a run, that are shown


def existing_run(connection: sql.Connection, run: RunId) -> UUID:
    """The key of a run that exists; raise `NotFound` otherwise."""
    return run_named(connection, run).run_id


def existing_incident(connection: sql.Connection, incident: IncidentId) -> IncidentRow:
    """An incident that exists; raise `NotFound` otherwise."""
    run = incident.run
    return read_incident(connection, existing_run(connection, run), run, incident.number)


def recorded_run(connection: sql.Connection, run: RunId) -> UUID:
    """The key of a run that exists or was deleted; raise `NotFound` otherwise."""
    key = run_key(run)
    deleted = sql.select(deleted_runs.c.run_id).where(deleted_runs.c.run_id == key)
    if connection.scalar(deleted) is not None:
        return key
    return existing_run(connection, run)


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
    judged = targets_with_health(connection, run, current.number)
    on_line = {target.name: target for target in judged}
    incident = None
    if run.open_incident is not None:
        incident = find_incident(connection, run.run_id, run.open_incident)
    unfinished = unfinished_commands(connection, run.run_id)
    kept = kept_targets(connection, run, judged, incident, unfinished)  # as jobs are told
    found = [on_line.get(t.name, t) for t in targets_of(connection, run.run_id, current.number)]
    return [ShownTarget(t, t.name in kept, t.name in on_line) for t in reversed(found)]


GIVEN: Final = ("approved", "delivered", "applied", "judged", "refused", "failed", "unknown")
_C, _N = commands.c, notes.c


_AT = sql.func.coalesce(_C.decided_at, _C.proposed_at).label("at")


@dataclass(frozen=True, slots=True)
class Intervention:
    """A command or a note, with what it did to the loss where that is kept."""

    command: CommandRow | None
    note: Row | None  # of a command: what was expected of it, and what came


def read_interventions(
    connection: sql.Connection, run_id: UUID, page: PageWanted
) -> tuple[Sequence[Intervention], str | None]:
    """The newest first, and the cursor of the next page."""
    ordered = sql.select(_AT, _C.incident, _C.number, sql.literal(0).label("note")).where(
        _C.run_id == run_id, _C.state.in_(GIVEN), _C.verb != "watch"
    )
    # Told in the same instant a note comes before the command.
    told = sql.select(_N.at, sql.literal(2**31 - 1), sql.literal(0), _N.number)
    both = sql.union_all(ordered, told.where(_N.run_id == run_id, _N.shown)).subquery()
    found, more = read_page(connection, sql.select(both), tuple(both.c), page)
    given = commands_by_key(
        connection, run_id, [(r.incident, r.number) for r in found if not r.note]
    )
    effects = effects_of(connection, run_id, [str(one.id) for one in given.values()])
    here = sql.select(notes).where(_N.run_id == run_id, _N.number.in_([r.note for r in found]))
    outside = {row.number: row for row in connection.execute(here)}
    interventions = []
    for row in found:
        command = None if row.note else given[row.incident, row.number]
        note = outside[row.note] if command is None else effects.get(str(command.id))
        interventions.append(Intervention(command, note))
    return interventions, more
