"""Responses to an incident as rows: acknowledgements, assignments, comments."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import ResponseAction
from spikeguard_server.entities import ResponseRow
from spikeguard_server.store.tables.core import incidents, responses

MAX_SHOWN: Final = 200  # the newest of an incident
_I, _S = incidents.c, responses.c


def acknowledged(
    run_id: sql.ColumnElement[UUID], incident: sql.ColumnElement[int]
) -> sql.ColumnElement[bool]:
    """Whether somebody looks at that incident."""
    return sql.exists().where(
        _I.run_id == run_id, _I.number == incident, _I.acknowledged_at.is_not(None)
    )


def set_responder(
    connection: sql.Connection, incident: tuple[UUID, int], **columns: str | datetime | None
) -> None:
    """Write who looks at an incident (`acknowledged_at`, `acknowledged_by`) or whose it is
    (`assignee`)."""
    mine = sql.tuple_(_I.run_id, _I.number) == incident
    connection.execute(sql.update(incidents).where(mine).values(**columns))


def add_response(
    connection: sql.Connection, run_id: UUID, incident: int, action: ResponseAction, person: str,
    now: datetime, *, assignee: str | None = None, text: str | None = None,
) -> int:  # fmt: skip
    """Write what a person did or said; its number."""
    before = sql.select(sql.func.count()).where(_S.run_id == run_id, _S.incident == incident)
    written = sql.insert(responses).values(
        run_id=run_id, incident=incident, number=before.scalar_subquery() + 1, at=now,
        person=person, action=action.value,
        assignee=assignee,
        text=text,
    )  # fmt: skip
    return int(connection.execute(written.returning(_S.number)).scalar_one())


def read_responses(connection: sql.Connection, run_id: UUID, incident: int) -> list[ResponseRow]:
    """The newest responses to an incident, oldest first."""
    newest = _ROWS.where(_S.run_id == run_id, _S.incident == incident)
    found = connection.execute(newest.order_by(_S.number.desc()).limit(MAX_SHOWN)).all()
    return [_response(row) for row in reversed(found)]


def read_response(
    connection: sql.Connection, run_id: UUID, incident: int, number: int
) -> ResponseRow:
    """A response that exists."""
    mine = (_S.run_id == run_id) & (_S.incident == incident) & (_S.number == number)
    return _response(connection.execute(_ROWS.where(mine)).one())


_ROWS = sql.select(_S.number, _S.at, _S.person, _S.action, _S.assignee, _S.text)


def _response(row: Any) -> ResponseRow:
    return ResponseRow(**{**row._mapping, "action": ResponseAction(row.action)})
