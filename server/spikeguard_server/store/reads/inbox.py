"""What waits for people across runs: one statement for each kind, each with a limit.

Law: reads only. Archived runs wait for nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import distinct_on

from spikeguard_protocol import CommandState, Verb
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.reads.incidents import in_time, incident_rows
from spikeguard_server.store.tables.core import FLEET, audit, commands, incidents, projects, runs
from spikeguard_server.store.tables.policies import policies
from spikeguard_server.store.tables.responses import responders

FAILED: Final = (
    CommandState.REFUSED, CommandState.FAILED, CommandState.UNKNOWN, CommandState.UNDELIVERED,
)  # fmt: skip
MAX_PROJECTS: Final = 200
_C, _I, _R, _P, _A = commands.c, incidents.c, runs.c, policies.c, audit.c
_OPEN: Final = sql.text("incidents.state <> 'closed'")  # as the index of open incidents says it
_WAITING: Final = sql.text("commands.state = 'proposed'")  # within an index
_SWITCHED: Final = "policy.halted"


@dataclass(frozen=True, slots=True)
class Switch:
    """The kill switch of a project. `at`, `by` and `reason` say who threw it, where it is on."""

    project: str
    halted: bool
    at: datetime | None = None
    by: str | None = None
    reason: str | None = None


def incidents_to_decide(
    connection: sql.Connection, project: str | None, limit: int
) -> Sequence[Row]:
    """Incidents whose proposal waits for somebody, the first to expire first."""
    found = (
        sql.select(_C.run_id, _C.incident, _C.expires_at)
        .join(runs, _R.run_id == _C.run_id)
        .where(_WAITING, in_time(), _C.verb != Verb.WATCH.value, *_scope(project))
        .order_by(_C.expires_at, _C.run_id)
        .limit(limit)
    ).subquery()
    mine = (found.c.run_id == _I.run_id) & (found.c.incident == _I.number)
    query = incident_rows().join(found, mine).order_by(found.c.expires_at, _I.run_id)
    return connection.execute(query).all()


def incidents_to_look_at(
    connection: sql.Connection, project: str | None, person: str | None, limit: int
) -> Sequence[Row]:
    """Open incidents that are `person`'s, then those that nobody has acknowledged."""
    whose = sql.func.lower(responders.c.assignee) == (person or "").lower()
    mine = sql.func.coalesce(whose, sql.false())
    query = incident_rows().where(_OPEN, *_scope(project))
    query = query.where(mine | responders.c.acknowledged_at.is_(None))
    order = (sql.not_(mine), _I.opened_at.desc(), _I.run_id)
    return connection.execute(query.order_by(*order).limit(limit)).all()


def failed_commands(
    connection: sql.Connection, project: str | None, limit: int
) -> Sequence[tuple[UUID, int, int]]:
    """(run, incident, number) of commands that came to nothing in the job, of open incidents
    for which nothing was proposed since; the newest first."""
    later = commands.alias("later")
    newer = sql.exists().where(
        later.c.run_id == _C.run_id, later.c.incident == _C.incident, later.c.number > _C.number,
        later.c.verb != Verb.WATCH.value,
    )  # fmt: skip
    of_incident = (_I.run_id == _C.run_id) & (_I.number == _C.incident)
    query = (
        sql.select(_C.run_id, _C.incident, _C.number)
        .join(incidents, of_incident)
        .join(runs, _R.run_id == _C.run_id)
        .where(_OPEN, _C.state.in_([state.value for state in FAILED]), ~newer, *_scope(project))
        .order_by(_C.finished_at.desc().nulls_last(), _C.run_id)
    )
    return [tuple(row) for row in connection.execute(query.limit(limit))]


def incidents_of(
    connection: sql.Connection, keys: Collection[tuple[UUID, int]]
) -> dict[tuple[UUID, int], Row]:
    """The incidents of these runs and numbers."""
    if not keys:
        return {}
    query = incident_rows().where(sql.tuple_(_I.run_id, _I.number).in_(keys))
    return {(row.run_id, row.number): row for row in connection.execute(query)}


def read_switches(connection: sql.Connection, project: str | None) -> list[Switch]:
    """The kill switch of each project, by name: thrown ones first, with who threw them and why."""
    newest = (
        sql.select(_P.project, _P.document)
        .ext(distinct_on(_P.project))
        .order_by(_P.project, _P.version.desc())
    ).subquery()
    on = sql.func.coalesce(newest.c.document["halted"].as_boolean(), sql.false())
    query = (
        sql.select(projects.c.name, on.label("halted"))
        .outerjoin(newest, newest.c.project == projects.c.name)
        .order_by(on.desc(), projects.c.name)
        .limit(MAX_PROJECTS)
    )
    if project is not None:
        query = query.where(projects.c.name == project)
    found = connection.execute(query).all()
    thrown = _thrown(connection, [row.name for row in found if row.halted])
    return [thrown.get(row.name, Switch(row.name, row.halted)) for row in found]


def _thrown(connection: sql.Connection, names: Sequence[str]) -> dict[str, Switch]:
    """The newest time that each of these was thrown."""
    if not names:
        return {}
    query = (
        sql.select(_A.project, _A.at, _A.actor, _A.reason)
        .ext(distinct_on(_A.project))
        .where(_A.run_id == FLEET, _A.action == _SWITCHED, _A.project.in_(names))
        .order_by(_A.project, _A.number.desc())
    )
    rows = connection.execute(query)
    return {row.project: Switch(row.project, True, row.at, row.actor, row.reason) for row in rows}


def _scope(project: str | None) -> list[sql.ColumnElement[bool]]:
    listed: sql.ColumnElement[bool] = _R.archived_at.is_(None)
    return [listed] if project is None else [listed, _R.project == project]
