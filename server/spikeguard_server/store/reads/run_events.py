"""What happened to runs lately, for the marks on graphs.

Invariants: reads only, of the audit by its time. At most `MAX_EVENTS`, the newest, of the last
`SHOWN`, so that a scrape that failed is made up for by the next and no series lasts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import Verb
from spikeguard_protocol.escaping import printable
from spikeguard_server.metrics import RunEvent
from spikeguard_server.store.tables.core import audit, commands, runs

SHOWN: Final = timedelta(minutes=15)
MAX_EVENTS: Final = 500
MAX_TEXT: Final = 100  # characters
_OF_INCIDENT: Final = {"open": "spike", "recur": "spike", "close": "close"}
_OF_COMMAND: Final = {"approve": "decision", "reject": "decision", "apply": "command"}
_SAID: Final = {"recur": "came back", "approve": "approved", "reject": "rejected"}
_A = audit.c
_RECENT: Final[sql.Select[Any]] = (
    sql.select(
        _A.run_id,
        runs.c.project,
        runs.c.name,
        _A.at,
        _A.action,
        _A.subject,
        _A.incident,
        _A.command,
        _A.after,
        _A.reason,
    )
    .join(runs, runs.c.run_id == _A.run_id)
    .where(_A.at > sql.func.now() - SHOWN)
    .where(_A.action.in_([*_OF_INCIDENT, *_OF_COMMAND, "noted"]))
    .order_by(_A.at.desc(), _A.run_id, _A.number.desc())
    .limit(MAX_EVENTS)
)
Row = sql.Row[Any]
_Verbs = Mapping[tuple[UUID, int, int], str]


def read_events(connection: sql.Connection) -> tuple[RunEvent, ...]:
    """Spikes, decisions, commands that were carried out, closes and notes, the newest first."""
    found = connection.execute(_RECENT).all()
    verbs = _verbs(connection, found)
    events = (_event(row, verbs) for row in found)
    return tuple(event for event in events if event is not None)


def _event(row: Row, verbs: _Verbs) -> RunEvent | None:
    if row.action == "noted":
        return _made(row, "note", (row.after or "").partition(" at step")[0], row.reason or "")
    if row.command is not None:
        what = _OF_COMMAND.get(row.action)
        verb = verbs.get((row.run_id, row.incident, row.command), "")
        if what == "command" and verb == Verb.ROLLBACK.value:
            what = "rollback"
        words = verb.replace("_", " ")
        said = f"{_SAID[row.action]}: {words}" if row.action in _SAID else f"applied: {words}"
    else:
        what = _OF_INCIDENT.get(row.action) if row.incident is not None else None
        said = _SAID.get(row.action, (row.after or "").replace("_", " "))
    return None if what is None else _made(row, what, row.subject, said)


def _made(row: Row, event: str, subject: str, text: str) -> RunEvent:
    return RunEvent(
        row.project, row.name, event, printable(subject), _cut(printable(text)), row.at.timestamp()
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _verbs(connection: sql.Connection, rows: Sequence[Row]) -> _Verbs:
    keys = {(row.run_id, row.incident, row.command) for row in rows if row.command is not None}
    if not keys:
        return {}
    c = commands.c
    query = sql.select(c.run_id, c.incident, c.number, c.verb)
    found = connection.execute(query.where(sql.tuple_(c.run_id, c.incident, c.number).in_(keys)))
    return {(row.run_id, row.incident, row.number): row.verb for row in found}
