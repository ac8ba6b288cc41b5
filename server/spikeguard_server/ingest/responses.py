"""Responses to an incident: acknowledge, assign, comment.

One transaction under the run's lock, each with its entry in the audit. What is asked for and is so
already changes nothing and is recorded nowhere. A closed incident is not acknowledged any more; who
writes about it has its post-mortem written anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sql

from spikeguard_protocol import IncidentId, IncidentState, ResponseAction
from spikeguard_server.access.person_names import read_person
from spikeguard_server.entities import IncidentRow, ResponseRow
from spikeguard_server.errors import Unprocessable, WrongState
from spikeguard_server.identity.actors import Actor
from spikeguard_server.store import audit
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import (
    add_response,
    date_report,
    read_incident,
    update_incident,
)
from spikeguard_server.store.runs import run_named

AUDITED: Final[Mapping[ResponseAction, str]] = {
    ResponseAction.ACKNOWLEDGED: "acknowledge",
    ResponseAction.UNACKNOWLEDGED: "unacknowledge",
    ResponseAction.ASSIGNED: "assign",
    ResponseAction.UNASSIGNED: "unassign",
    ResponseAction.COMMENTED: "comment",
}


def acknowledge(connection: sql.Connection, incident: IncidentId, by: Actor) -> None:
    """`by` looks at it; where somebody does already, it stays theirs."""
    row = _locked(connection, incident)
    if row.acknowledged_by is not None:
        return
    if row.incident.state is IncidentState.CLOSED:
        raise WrongState(f"{incident} is closed", "Comment on it, or assign it")
    now = database_now(connection)
    update_incident(connection, row.key, acknowledged_at=now, acknowledged_by=by)
    _record(connection, row, by, ResponseAction.ACKNOWLEDGED, after=str(by))


def take_back_acknowledgement(connection: sql.Connection, incident: IncidentId, by: Actor) -> None:
    """Nobody looks at it any more: whoever is next is told, if somebody has to decide."""
    row = _locked(connection, incident)
    if row.acknowledged_by is None:
        return
    update_incident(connection, row.key, acknowledged_at=None, acknowledged_by=None)
    _record(connection, row, by, ResponseAction.UNACKNOWLEDGED, before=row.acknowledged_by)


def assign(
    connection: sql.Connection, incident: IncidentId, assignee: str | None, by: Actor
) -> None:
    """It is `assignee`'s from now on; None: nobody's."""
    row, name = _locked(connection, incident), assignee
    if name is not None and name != by:  # who signed in is who they are
        name = read_person(name, "assignee")
    if name == row.assignee:
        return
    update_incident(connection, row.key, assignee=name)
    action = ResponseAction.UNASSIGNED if name is None else ResponseAction.ASSIGNED
    _record(
        connection, row, by, action, before=row.assignee, after=name, assignee=name or row.assignee
    )


def comment(connection: sql.Connection, incident: IncidentId, text: str, by: Actor) -> ResponseRow:
    """Keep what `by` says of it."""
    row = _locked(connection, incident)
    if not text.strip():
        raise Unprocessable("A comment needs text", "Say what you found", field="text")
    return _record(connection, row, by, ResponseAction.COMMENTED, text=text.strip())


def _locked(connection: sql.Connection, incident: IncidentId) -> IncidentRow:
    """The incident under its run's lock; `NotFound` where there is none."""
    run_named(connection, incident.run, locked=True)
    return read_incident(connection, incident)


def _record(
    connection: sql.Connection, row: IncidentRow, by: Actor, action: ResponseAction, *,
    before: str | None = None, after: str | None = None, **said: Any,
) -> ResponseRow:  # fmt: skip
    written = add_response(connection, *row.key, action, by, **said)
    audit.append(
        connection, row.run_id, actor=by, action=AUDITED[action], subject=str(row.id),
        incident=row.number, before=before, after=after, reason=said.get("text"),
    )  # fmt: skip
    if row.incident.state is IncidentState.CLOSED:
        date_report(connection, *row.key)
    return written
