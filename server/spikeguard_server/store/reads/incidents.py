"""Incidents as the API shows them: the lists, what backs one up, earlier ones like it.

Reads only. A proposal that can no longer be approved is shown as none, whatever the ticker has got
round to.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.command_outcome import DONE
from spikeguard_protocol import RUN_ITSELF, CommandState, IncidentState, Outcome, Verb
from spikeguard_server.entities import CommandRow, IncidentRow
from spikeguard_server.store.commands import COMMANDS, IN_TIME, command_rows
from spikeguard_server.store.incidents import SELECT, incident_row, rows
from spikeguard_server.store.paging import PageWanted, read_page
from spikeguard_server.store.runs import ENDED
from spikeguard_server.store.tables.core import commands, incidents, runs

MAX_PRECEDENTS: Final = 200
FAILED: Final = (
    CommandState.REFUSED, CommandState.FAILED, CommandState.UNKNOWN, CommandState.UNDELIVERED,
)  # fmt: skip
_I, _C, _R = incidents.c, commands.c, runs.c
_OPEN: Final = sql.text("incidents.state <> 'closed'")  # as the index of open incidents says it


def list_incidents(
    connection: sql.Connection,
    page: PageWanted,
    *,
    project: str | None = None,
    run_id: UUID | None = None,
    states: Sequence[IncidentState] = (),
) -> tuple[Sequence[IncidentRow], str | None]:
    """Incidents, newest first, and the cursor of the next page."""
    query = SELECT.where(*_listed(project))
    if run_id is not None:
        query = query.where(_I.run_id == run_id)
    if states:
        query = query.where(_I.state.in_([state.value for state in states]))
    key = (_I.opened_at, _I.run_id, _I.number)
    found, more = read_page(connection, query, key, page)
    return [incident_row(row) for row in found], more


def _listed(project: str | None) -> list[sql.ColumnElement[bool]]:
    return [] if project is None else [_R.project == project]


def incidents_to_decide(
    connection: sql.Connection, project: str | None, limit: int
) -> Sequence[IncidentRow]:
    """Incidents whose proposal waits for somebody, the first to expire first."""
    found = (
        sql.select(_C.run_id, _C.incident, _C.expires_at)
        .join(runs, _R.run_id == _C.run_id)
        # Within an index.
        .where(sql.text("commands.state = 'proposed'"), IN_TIME, *_listed(project))
        .where(_C.verb != Verb.WATCH.value)
        .order_by(_C.expires_at, _C.run_id)
        .limit(limit)
    ).subquery()
    mine = (found.c.run_id == _I.run_id) & (found.c.incident == _I.number)
    return rows(connection, SELECT.join(found, mine).order_by(found.c.expires_at, _I.run_id))


def incidents_to_look_at(
    connection: sql.Connection, project: str | None, person: str | None, limit: int
) -> Sequence[IncidentRow]:
    """Open incidents that are `person`'s, then those that nobody has acknowledged."""
    whose = sql.func.lower(_I.assignee) == (person or "").lower()
    mine = sql.func.coalesce(whose, sql.false())
    query = SELECT.where(_OPEN, *_listed(project))
    query = query.where(mine | _I.acknowledged_at.is_(None))
    order = (sql.not_(mine), _I.opened_at.desc(), _I.run_id)
    return rows(connection, query.order_by(*order).limit(limit))


def failed_commands(
    connection: sql.Connection, project: str | None, limit: int, *, of_runs: bool
) -> list[CommandRow]:
    """Commands that came to nothing in the job where nothing was proposed or ordered since, the
    newest first: of open incidents, or (`of_runs`) since yesterday of runs that go on."""
    later = commands.alias("later")
    newer = sql.exists().where(
        later.c.run_id == _C.run_id, later.c.incident == _C.incident, later.c.number > _C.number,
        later.c.verb != Verb.WATCH.value,
    )  # fmt: skip
    query = COMMANDS.where(_C.state.in_([state.value for state in FAILED]), ~newer)
    if of_runs:
        lately = _C.finished_at > sql.func.now() - timedelta(days=1)
        query = query.where(_C.incident == RUN_ITSELF, lately, _R.state != ENDED)
    else:
        of_incident = (_I.run_id == _C.run_id) & (_I.number == _C.incident)
        query = query.join(incidents, of_incident).where(_OPEN)
    query = query.where(*_listed(project))
    order = (_C.finished_at.desc().nulls_last(), _C.run_id)
    return command_rows(connection, query.order_by(*order).limit(limit))


def incidents_by_key(
    connection: sql.Connection, keys: Sequence[tuple[UUID, int]]
) -> dict[tuple[UUID, int], IncidentRow]:
    """The incidents of these runs and numbers."""
    if not keys:
        return {}
    found = rows(connection, SELECT.where(sql.tuple_(_I.run_id, _I.number).in_(keys)))
    return {row.key: row for row in found}


def read_precedents(
    connection: sql.Connection, row: IncidentRow
) -> Sequence[tuple[Verb | None, Outcome]]:
    """What was done (None: nothing) about the newest closed incidents of its project, kind and
    likeliest cause that began before it, and how they ended; none where its causes were never
    ranked."""
    incident = row.incident
    if not incident.causes:
        return []
    newest = (
        sql.select(_I.run_id, _I.number, _I.outcome)
        .join(runs, _R.run_id == _I.run_id)
        .where(_R.project == row.run.project, _I.outcome.is_not(None))
        .where(_I.kind == incident.kind.value, _I.cause == incident.causes[0].cause.value)
        .where(_I.opened_at < row.opened_at)
        .order_by(_I.opened_at.desc(), _I.run_id, _I.number)
        .limit(MAX_PRECEDENTS)
    ).subquery()
    done = (
        sql.select(_C.verb)
        .where(_C.run_id == newest.c.run_id, _C.incident == newest.c.number)
        .where(_C.state.in_([state.value for state in EXECUTED]))
        .where(_C.verb.in_(sorted(verb.value for verb in DONE)))
        .order_by(_C.number.desc())
        .limit(1)
        .scalar_subquery()
    )
    found = connection.execute(sql.select(newest.c.outcome, done.label("verb")))
    return [(None if verb is None else Verb(verb), Outcome(out)) for out, verb in found]
