"""Post-mortems: what they are made of, and when what they say is to be settled.

They are made of what is kept with an incident, which outlives the samples.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import distinct_on

from spikeguard_server.store.tables import core as tables

_I, _R = tables.incidents.c, tables.runs.c
MAX_WAIT_S: Final = 3600.0  # between two tries at a post-mortem that cannot be settled


@dataclass(frozen=True, slots=True)
class DueReport:
    """The post-mortem of an incident, and since when it is due."""

    run_id: UUID
    incident: int
    at: datetime


def want_report(connection: sql.Connection, run_id: UUID, incident: int, now: datetime) -> None:
    """What a post-mortem would say changed: it is to be settled, or settled anew."""
    _update(connection, run_id, incident, report_due_at=now, report_failures=0)


def due_reports(connection: sql.Connection, limit: int) -> list[DueReport]:
    """Of each project the post-mortem that has been due longest, the longest waiting first; read
    without a lock."""
    longest = (
        sql.select(_I.run_id, _I.number, _I.report_due_at)
        .ext(distinct_on(_R.project))
        .join(tables.runs, _R.run_id == _I.run_id)
        .where(_I.report_due_at <= sql.func.clock_timestamp())
        .order_by(_R.project, _I.report_due_at)
        .subquery()
    )
    rows = connection.execute(sql.select(longest).order_by(longest.c.report_due_at).limit(limit))
    return [DueReport(*row) for row in rows]


def still_due(connection: sql.Connection, due: DueReport) -> sql.Row[Any] | None:
    """When it was settled last (`reported_at`); None where somebody settled or postponed it since
    it was read."""
    return connection.execute(sql.select(_I.reported_at).where(_still(due))).one_or_none()


def settle_report(connection: sql.Connection, due: DueReport, at: datetime) -> None:
    """What the post-mortem says is settled as of `at`; one that became due since it was read is
    not."""
    connection.execute(
        sql.update(tables.incidents)
        .where(_still(due))
        .values(report_due_at=None, report_failures=0, reported_at=at)
    )


def postpone_report(connection: sql.Connection, due: DueReport) -> None:
    """It could not be settled: try again later and later, so that the others get their turn."""
    wait_s = sql.func.least(sql.func.power(2.0, sql.func.least(_I.report_failures, 20)), MAX_WAIT_S)
    _update(
        connection,
        due.run_id,
        due.incident,
        report_due_at=_in(wait_s),
        report_failures=_I.report_failures + 1,
    )


def _in(wait_s: sql.ColumnElement[Any]) -> sql.ColumnElement[Any]:
    """So many seconds from now."""
    wait = sql.func.make_interval(0, 0, 0, 0, 0, 0, sql.cast(wait_s, sql.Double))
    return sql.func.clock_timestamp() + wait


def _still(due: DueReport) -> sql.ColumnElement[bool]:
    return sql.and_(_is(due.run_id, due.incident), _I.report_due_at == due.at)


def _is(run_id: UUID, incident: int) -> sql.ColumnElement[bool]:
    return sql.and_(_I.run_id == run_id, _I.number == incident)


def _update(connection: sql.Connection, run_id: UUID, incident: int, **columns: Any) -> None:
    connection.execute(sql.update(tables.incidents).where(_is(run_id, incident)).values(**columns))


def attempts_named(
    connection: sql.Connection, run_id: UUID, numbers: Collection[int]
) -> Sequence[sql.Row[Any]]:
    """The attempts of these numbers, oldest first."""
    c = tables.attempts.c
    mine = sql.select(tables.attempts).where(c.run_id == run_id, c.number.in_(numbers))
    return connection.execute(mine.order_by(c.number)).all()
