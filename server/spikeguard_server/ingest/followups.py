"""What people do with an incident's follow-ups: add, reword, give to somebody, tick off.

Invariants: one transaction under the run's lock, each change with its entry in the audit; who
changes names the revision that was seen. A closed incident has its post-mortem written anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from spikeguard_protocol import FollowupState, IncidentId, IncidentState
from spikeguard_server.access.person_names import read_person
from spikeguard_server.domain.lifecycle import moves
from spikeguard_server.domain.lifecycle.followup_life import moved
from spikeguard_server.errors import Conflict, NotFound, Unprocessable, WrongState
from spikeguard_server.identity.actors import Actor
from spikeguard_server.ingest.responses import locked_incident
from spikeguard_server.store import audit
from spikeguard_server.store.clock import database_now
from spikeguard_server.store.followups import (
    MAX_FOLLOWUPS,
    add_followup,
    read_followup,
    read_followups,
    update_followup,
)
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.reports import want_report
from spikeguard_server.store.stored_text import storable


@dataclass(frozen=True, slots=True)
class FollowupEdit:
    """What is to become of a follow-up; None leaves a part as it is."""

    revision: int  # that was seen
    text: str | None = None
    owner: str | None = None
    nobody: bool = False  # it is nobody's from now on
    state: FollowupState | None = None


def add(
    connection: sql.Connection, incident: IncidentId, text: str, owner: str | None, by: Actor
) -> int:
    """Keep what `by` wants done; its number."""
    row = locked_incident(connection, incident)
    if len(read_followups(connection, row.run_id, incident.number)) >= MAX_FOLLOWUPS:
        raise Conflict(
            f"{incident} has {MAX_FOLLOWUPS:,} follow-ups, which is the most",
            "Keep what else is to be done in your own tracker",
        )
    name, now = _person(owner, by), database_now(connection)
    number = add_followup(connection, row.run_id, incident.number, text, by, now, owner=name)
    _record(connection, incident, row, by, number, None, _words(text, name, FollowupState.OPEN))
    return number


def change(
    connection: sql.Connection, incident: IncidentId, number: int, wanted: FollowupEdit, by: Actor
) -> None:
    """Reword it, give it to somebody, move it on; what is so already changes nothing."""
    row = locked_incident(connection, incident)
    found = read_followup(connection, row.run_id, incident.number, number)
    if found is None:
        raise no_followup(incident, number)
    if found.revision != wanted.revision:
        raise Conflict(
            f"Follow-up {number} of {incident} was changed by {found.changed_by} meanwhile",
            f"Look at it again: it is at revision {found.revision} now",
            field="revision",
        )
    columns = _columns(found, wanted, by)
    if not columns:
        return
    now = database_now(connection)
    update_followup(connection, row.run_id, incident.number, number, by, now, columns)
    after = {"text": found.text, "owner": found.owner, "state": found.state} | columns
    _record(
        connection, incident, row, by, number, _words(found.text, found.owner, found.state),
        _words(after["text"], after["owner"], after["state"]),
    )  # fmt: skip


def no_followup(incident: IncidentId, number: int) -> NotFound:
    """There is none of that number."""
    return NotFound(
        f"{incident} has no follow-up {number}", f"`spikeguard followup '{incident}'` lists them"
    )


def _columns(found: Row, wanted: FollowupEdit, by: Actor) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if wanted.text is not None:
        columns["text"] = storable(wanted.text)
    if wanted.owner is not None:
        columns["owner"] = _person(wanted.owner, by)
    elif wanted.nobody:
        columns["owner"] = None
    if wanted.state is not None:
        columns["state"] = _state(FollowupState(found.state), wanted.state)
    return {name: value for name, value in columns.items() if getattr(found, name) != value}


def _state(now: FollowupState, to: FollowupState) -> str:
    try:
        return moved(now, to).value
    except moves.IllegalMove:
        raise WrongState(f"The follow-up is {now}", "Reopen it first", field="state") from None


def _person(name: str | None, by: Actor) -> str | None:
    """Whose it is to be; who signed in is who they are."""
    if name is None or name == by:
        return name
    try:
        return read_person(name)
    except Unprocessable as refusal:
        raise Unprocessable(refusal.message, refusal.remedy, field="owner") from None


def _words(text: str, owner: str | None, state: str) -> str:
    return storable(f"{state}, {owner or 'nobody'}: {text}")


def _record(
    connection: sql.Connection, incident: IncidentId, row: Row, by: Actor, number: int,
    before: str | None, after: str,
) -> None:  # fmt: skip
    audit.append(
        connection, row.run_id, actor=by, action="follow_up", subject=f"{incident} {number}",
        before=before, after=after,
    )  # fmt: skip
    if row.state == IncidentState.CLOSED:
        want_report(connection, row.run_id, incident.number, database_now(connection))
