"""Deletes the curves of attempts that have been quiet for longer than samples are kept.

A transaction takes some rows, under the run's lock. What is kept with an incident stays, and so do
incidents, audit and reports.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.store import audit
from spikeguard_server.store.deleted_runs import delete_some
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.runs import lock_run
from spikeguard_server.store.tables.core import attempts, chunks, incident_stretches, layer_norms

_A, _K = attempts.c, incident_stretches.c


def quiet_attempts(connection: sql.Connection, days: float) -> list[tuple[UUID, int]]:
    """Run and number of attempts that have curves, as far as is known, and have been quiet for
    `days`; read without a lock."""
    query = sql.select(_A.run_id, _A.number).where(_quiet(connection, days))
    return [(row.run_id, row.number) for row in connection.execute(query)]


def _quiet(connection: sql.Connection, days: float) -> sql.ColumnElement[bool]:
    since: datetime = database_now(connection) - timedelta(days=days)
    dropped = sql.func.coalesce(_A.curves_dropped_at > _A.last_message_at, sql.false())
    return sql.and_(_A.last_message_at <= since, ~dropped)


def drop_curves(connection: sql.Connection, run_id: UUID, attempt: int, days: float) -> bool:
    """Delete some rows of the attempt's curves; False once none is left, which the audit says, or
    where it said something meanwhile."""
    run = lock_run(connection, run_id)
    this = sql.and_(_A.run_id == run_id, _A.number == attempt)
    quiet = sql.select(_A.number).where(this, _quiet(connection, days))
    if run is None or connection.scalar(quiet) is None:
        return False
    norms = layer_norms.c.step
    for table, first, last in (
        (chunks, chunks.c.first_step, chunks.c.last_step), (layer_norms, norms, norms),
    ):  # fmt: skip
        kept = sql.exists().where(
            _K.run_id == run_id, _K.attempt == attempt, _K.segment == table.c.segment,
            _K.first_step <= last, _K.last_step >= first,
        )  # fmt: skip
        if delete_some(connection, table, run_id, (table.c.attempt == attempt) & ~kept):
            return True
    connection.execute(
        sql.update(attempts).where(this).values(curves_dropped_at=sql.func.clock_timestamp())
    )
    audit.append(
        connection, run_id, actor=audit.SERVER, action="drop", subject=str(run.id),
        before=f"samples of attempt {attempt}",
        reason=f"attempt {attempt} said nothing for {days:g} days",
    )  # fmt: skip
    return False
