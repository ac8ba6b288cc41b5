"""Post-mortems as they were written, and when one is to be written."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_server import tables

_I = tables.incidents.c
MAX_WAIT_S: Final = 3600.0  # between two tries at a post-mortem that cannot be written


def write_report(
    connection: sql.Connection,
    run_id: UUID,
    incident: int,
    format: str,
    body: bytes,
    now: datetime,
) -> None:
    """Keep the document; a later writing takes the place of an earlier one."""
    written = insert(tables.reports).values(
        run_id=run_id, incident=incident, format=format, body=body, written_at=now
    )
    connection.execute(
        written.on_conflict_do_update(
            index_elements=["run_id", "incident", "format"],
            set_={"body": body, "written_at": now},
        )
    )


def want_report(connection: sql.Connection, run_id: UUID, incident: int, now: datetime) -> None:
    """What a post-mortem would say changed: it is to be written, or written anew."""
    _update(connection, run_id, incident, report_due_at=now, report_failures=0)


def due_reports(connection: sql.Connection, now: datetime) -> list[tuple[UUID, int]]:
    """Incidents whose post-mortem is due, the longest waiting first; read without a lock."""
    rows = connection.execute(
        sql.select(_I.run_id, _I.number)
        .where(_I.report_due_at.is_not(None), _I.report_due_at <= now)
        .order_by(_I.report_due_at)
        .limit(100)
    )
    return [(row.run_id, row.number) for row in rows]


def report_due_at(connection: sql.Connection, run_id: UUID, incident: int) -> datetime | None:
    """Since when the incident's post-mortem is due."""
    which = sql.select(_I.report_due_at).where(_I.run_id == run_id, _I.number == incident)
    due_at: datetime | None = connection.execute(which).scalar_one()
    return due_at


def settle_report(
    connection: sql.Connection, run_id: UUID, incident: int, due_at: datetime | None
) -> None:
    """The post-mortem that was due at `due_at` is written; one that became due since is not."""
    connection.execute(
        sql.update(tables.incidents)
        .where(_I.run_id == run_id, _I.number == incident, _I.report_due_at == due_at)
        .values(report_due_at=None, report_failures=0)
    )


def postpone_report(connection: sql.Connection, run_id: UUID, incident: int) -> None:
    """It could not be written: try again later and later, so that the others get their turn."""
    wait_s = sql.func.least(sql.func.power(2.0, sql.func.least(_I.report_failures, 20)), MAX_WAIT_S)
    waiting = sql.func.make_interval(0, 0, 0, 0, 0, 0, sql.cast(wait_s, sql.Double))
    _update(
        connection,
        run_id,
        incident,
        report_due_at=sql.func.clock_timestamp() + waiting,
        report_failures=_I.report_failures + 1,
    )


def _update(connection: sql.Connection, run_id: UUID, incident: int, **columns: Any) -> None:
    connection.execute(
        sql.update(tables.incidents)
        .where(_I.run_id == run_id, _I.number == incident)
        .values(**columns)
    )
