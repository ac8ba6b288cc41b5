"""Responses to an incident: acknowledge, assign, comment.

One transaction under the run's lock, each with its entry in the audit. What is asked for and is so
already changes nothing and is recorded nowhere. A closed incident is not acknowledged any more; who
writes about it has its post-mortem written anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sql

from spikeguard_protocol import IncidentId, IncidentState, ResponseAction
from spikeguard_server.access.person_names import read_person
from spikeguard_server.entities import IncidentRow
from spikeguard_server.errors import Unprocessable, WrongState
from spikeguard_server.identity.actors import Actor
from spikeguard_server.store import audit
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.reports import want_report
from spikeguard_server.store.responses import (
    add_response,
    set_acknowledged,
    set_assignee,
)
from spikeguard_server.store.runs import run_named

AUDITED: Final[Mapping[ResponseAction, str]] = {
    ResponseAction.ACKNOWLEDGED: "acknowledge",
    ResponseAction.UNACKNOWLEDGED: "unacknowledge",
    ResponseAction.ASSIGNED: "assign",
    ResponseAction.UNASSIGNED: "unassign",
    ResponseAction.COMMENTED: "comment",
}


@dataclass(frozen=True, slots=True)
class _Work:
    """An incident that somebody responds to, under its run's lock."""

    connection: sql.Connection
    incident: IncidentId
    row: IncidentRow
    by: Actor
    now: datetime


def acknowledge(connection: sql.Connection, incident: IncidentId, by: Actor) -> None:
    """`by` looks at it; where somebody does already, it stays theirs."""
    work = _open(connection, incident, by)
    if work.row.acknowledged_by is not None:
        return
    if work.row.incident.state is IncidentState.CLOSED:
        raise WrongState(f"{incident} is closed", "Comment on it, or assign it")
    set_acknowledged(connection, work.row.run_id, incident.number, by, work.now)
    _record(work, ResponseAction.ACKNOWLEDGED, after=str(by))


def take_back_acknowledgement(connection: sql.Connection, incident: IncidentId, by: Actor) -> None:
    """Nobody looks at it any more: whoever is next is told, if somebody has to decide."""
    work = _open(connection, incident, by)
    if work.row.acknowledged_by is None:
        return
    set_acknowledged(connection, work.row.run_id, incident.number, None, work.now)
    _record(work, ResponseAction.UNACKNOWLEDGED, before=work.row.acknowledged_by)


def assign(
    connection: sql.Connection, incident: IncidentId, assignee: str | None, by: Actor
) -> None:
    """It is `assignee`'s from now on; None: nobody's."""
    work = _open(connection, incident, by)
    name = assignee
    if name is not None and name != by:  # who signed in is who they are
        name = _checked(name)
    before = work.row.assignee
    if name == before:
        return
    set_assignee(connection, work.row.run_id, incident.number, name)
    action = ResponseAction.UNASSIGNED if name is None else ResponseAction.ASSIGNED
    _record(work, action, before=before, after=name, assignee=name or before)


def comment(connection: sql.Connection, incident: IncidentId, text: str, by: Actor) -> int:
    """Keep what `by` says of it; the number that it has among the responses."""
    work = _open(connection, incident, by)
    if not text.strip():
        raise Unprocessable("A comment needs text", "Say what you found", field="text")
    return _record(work, ResponseAction.COMMENTED, text=text.strip())


def _checked(name: str) -> str:
    try:
        return read_person(name)
    except Unprocessable as refusal:
        raise Unprocessable(refusal.message, refusal.remedy, field="assignee") from None


def locked_incident(connection: sql.Connection, incident: IncidentId) -> IncidentRow:
    """The incident under its run's lock; `NotFound` where there is none."""
    run = run_named(connection, incident.run, locked=True)
    return read_incident(connection, run.run_id, incident.run, incident.number)


def _open(connection: sql.Connection, incident: IncidentId, by: Actor) -> _Work:
    row = locked_incident(connection, incident)
    return _Work(connection, incident, row, by, database_now(connection))


def _record(
    work: _Work, action: ResponseAction, *, before: str | None = None, after: str | None = None,
    **said: Any,
) -> int:  # fmt: skip
    connection, run_id, number = work.connection, work.row.run_id, work.incident.number
    written = add_response(connection, run_id, number, action, work.by, work.now, **said)
    audit.append(
        connection, run_id, actor=work.by, action=AUDITED[action], subject=str(work.incident),
        incident=work.incident.number,
        before=before, after=after, reason=said.get("text"),
    )  # fmt: skip
    if work.row.incident.state is IncidentState.CLOSED:
        want_report(connection, run_id, number, work.now)
    return written
