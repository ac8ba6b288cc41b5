"""What people say: of an incident that they acknowledge, assign or comment on, or of a change of
the run.

One transaction under the run's lock, each with its entry in the audit. What is asked for and is so
already changes nothing and is recorded nowhere. A closed incident is not acknowledged any more; who
writes about it has its post-mortem written anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sql

from spikeguard_core.diagnosis.change_effect import ExpectedEffect, judged_after
from spikeguard_protocol import IncidentId, IncidentState, ResponseAction, RunId
from spikeguard_server.access.person_names import read_person
from spikeguard_server.entities import IncidentRow, ResponseRow
from spikeguard_server.errors import Unprocessable, WrongState
from spikeguard_server.identity.actors import Actor
from spikeguard_server.ingest.detection import load_detection
from spikeguard_server.store import audit
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import (
    add_response,
    date_report,
    read_incident,
    update_incident,
)
from spikeguard_server.store.notes import add_note
from spikeguard_server.store.runs import Place, current_line, run_named, segments_of, stretches

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


def tell_note(
    connection: sql.Connection, run: RunId, by: Actor, text: str, *, step: int | None = None,
    reason: str | None = None, expected: ExpectedEffect | None = None,
    expected_size: float | None = None,
) -> int:  # fmt: skip
    """Write down what a person says of a change after `step`, the newest where none is given;
    returns the note's number. `expected_size`: nats."""
    row = run_named(connection, run, locked=True)
    key, newest = row.run_id, row.last_step or 0
    step = newest if step is None else step
    if step > newest:
        raise Unprocessable(
            f"The run stands at step {newest:,}, which lies before step {step:,}",
            "Give a step that was trained, or none for the newest",
            field="step",
        )
    segments = segments_of(connection, key)
    found = stretches(current_line(row, segments), segments, step, step)
    # None where it was not trained on the line that is trained now.
    place = next((Place(each.attempt, each.id.number, step) for each, *_ in found), None)
    number = add_note(
        connection, key, database_now(connection), place, source="person", actor=by, step=step,
        text=text, reason=reason, expected=expected, expected_size=expected_size,
        due_step=None if place is None else step + judged_after(step),
    )  # fmt: skip
    assert number is not None
    if place is not None:  # let the detector know why the loss may rise from there on
        detection = load_detection(connection, key)
        if not detection.relearned:  # else the next message takes the run over from an old release
            detection.moved().note_change(step)
            detection.save(connection)
    audit.append(
        connection, key, actor=by, action="noted", subject=str(run),
        after=f"note {number} at step {step}", reason=f"{text}: {reason}" if reason else text,
    )  # fmt: skip
    return number
