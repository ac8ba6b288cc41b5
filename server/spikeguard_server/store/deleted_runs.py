"""Deletes runs: everything of a run but its audit and its figures; and the curves of attempts that
have been quiet for longer than samples are kept. What a later run of a deleted one's name is made
from; and what the fleet's counters count, of runs there are and were.

The run and all that belongs to it go in one transaction, under its lock, and never while an attempt
of it lives. A run that begins under the
name again counts attempts, incidents and detector versions on, so that no id, no key and no kept
detector means two things. Of what retention deletes, what is kept with an incident stays, and so do
incidents and audit.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.lifecycle.command_life import COMMAND_MOVES
from spikeguard_protocol import CommandState, RunId
from spikeguard_server.errors import StillTraining
from spikeguard_server.store.audit import SERVER, append
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.paging import Row
from spikeguard_server.store.runs import RunRow, attempts_of, live_attempts, lock_run, run_named
from spikeguard_server.store.tables.core import (
    FLEET,
    attempts,
    audit,
    chunks,
    deleted_runs,
    detector_states,
    incident_stretches,
    layer_norms,
    metadata,
    runs,
)

KEPT: Final = (audit, deleted_runs)
_NO_TIMEOUT: Final = "SET LOCAL statement_timeout = 0"  # curves are large
_A, _D, _K = attempts.c, deleted_runs.c, incident_stretches.c


def former_run(connection: sql.Connection, run_id: UUID) -> Row | None:
    """What the newest deleted run of this name had come to; None if there never was one."""
    query = sql.select(deleted_runs).where(_D.run_id == run_id)
    return connection.execute(query).one_or_none()


def delete_run(
    connection: sql.Connection, run: RunId, by: str, reason: str, silent_after: timedelta
) -> None:
    """Delete a run and all that belongs to it. Raise `NotFound`, and `StillTraining` where an
    attempt of it lives.

    Tables are found by their `run_id`, last first, so that a new one is not forgotten."""
    row, now = run_named(connection, run, locked=True), database_now(connection)
    if live := live_attempts(attempts_of(connection, row.run_id), row, now, silent_after):
        raise StillTraining(run, live[0].number, silent_after.total_seconds())
    _remember(connection, row, now)
    # Waits for whoever writes of the run without its lock (`keep_run`).
    mine = sql.select(runs.c.run_id).where(runs.c.run_id == row.run_id)
    connection.execute(mine.with_for_update())
    connection.exec_driver_sql(_KEEP_TOTALS, {"final": [*FINAL], "run_id": row.run_id})
    connection.exec_driver_sql(_NO_TIMEOUT)
    for table in reversed(metadata.tables.values()):
        if "run_id" in table.c and table not in KEPT:
            connection.execute(sql.delete(table).where(table.c.run_id == row.run_id))
    what = f"{row.attempts} attempts, {row.incidents} incidents"
    for key in (row.run_id, FLEET):
        append(
            connection, key, actor=by, action="deleted", subject=str(run), before=what,
            reason=reason,
        )  # fmt: skip


def _remember(connection: sql.Connection, run: RunRow, now: datetime) -> None:
    s = detector_states.c
    version = connection.scalar(sql.select(s.version).where(s.run_id == run.run_id)) or 0
    before = former_run(connection, run.run_id)
    values = {
        "project": run.project, "name": run.name, "deleted_at": now, "attempts": run.attempts,
        "incidents": run.incidents,
        "detector_version": max(version, before.detector_version if before else 0),
    }  # fmt: skip
    connection.execute(
        insert(deleted_runs)
        .values(run_id=run.run_id, **values)
        .on_conflict_do_update(index_elements=["run_id"], set_=values)
    )


def quiet_attempts(connection: sql.Connection, days: float) -> list[tuple[UUID, int]]:
    """Run and number of attempts that have curves, as far as is known, and have been quiet for
    `days`; read without a lock."""
    query = sql.select(_A.run_id, _A.number).where(_quiet(days))
    return [(row.run_id, row.number) for row in connection.execute(query)]


def _quiet(days: float) -> sql.ColumnElement[bool]:
    since = sql.func.clock_timestamp() - timedelta(days=days)
    dropped = sql.func.coalesce(_A.curves_dropped_at > _A.last_message_at, sql.false())
    return sql.and_(_A.last_message_at <= since, ~dropped)


def drop_curves(connection: sql.Connection, run_id: UUID, attempt: int, days: float) -> None:
    """Delete the attempt's curves, which the audit says; not where it said something meanwhile."""
    run = lock_run(connection, run_id)
    this = sql.and_(_A.run_id == run_id, _A.number == attempt)
    quiet = sql.select(_A.number).where(this, _quiet(days))
    if run is None or connection.scalar(quiet) is None:
        return
    connection.exec_driver_sql(_NO_TIMEOUT)
    norms = layer_norms.c.step
    for table, first, last in (
        (chunks, chunks.c.first_step, chunks.c.last_step), (layer_norms, norms, norms),
    ):  # fmt: skip
        kept = sql.exists().where(
            _K.run_id == run_id, _K.attempt == attempt, _K.segment == table.c.segment,
            _K.first_step <= last, _K.last_step >= first,
        )  # fmt: skip
        mine = (table.c.run_id == run_id) & (table.c.attempt == attempt)
        connection.execute(sql.delete(table).where(mine, ~kept))
    connection.execute(
        sql.update(attempts).where(this).values(curves_dropped_at=sql.func.clock_timestamp())
    )
    append(
        connection, run_id, actor=SERVER, action="drop", subject=str(run.id),
        before=f"samples of attempt {attempt}",
        reason=f"attempt {attempt} said nothing for {days:g} days",
    )  # fmt: skip


# A counter that falls looks to Prometheus like one that began anew, and to an alert like good news.
_LEFT = {state for state, _ in COMMAND_MOVES}
FINAL: Final = tuple(state.value for state in CommandState if state not in _LEFT)
_COUNTED: Final = """
SELECT 'closed' AS counter, kind AS first, outcome AS second, count(*) AS count
FROM incidents WHERE outcome IS NOT NULL {of_run} GROUP BY kind, outcome
UNION ALL SELECT 'finished', verb, state, count(*)
FROM commands WHERE state = ANY(%(final)s) {of_run} GROUP BY verb, state
UNION ALL SELECT 'dropped', '', '', sum(dropped_samples)::bigint
FROM attempts WHERE dropped_samples > 0 {of_run} HAVING count(*) > 0
"""
_TOTALS: Final = f"""
SELECT counter, first, second, sum(count)::bigint FROM (
    {_COUNTED.format(of_run="")} UNION ALL SELECT counter, first, second, count FROM deleted_totals
) AS counted GROUP BY counter, first, second
"""
# Before a run goes, what the counters have of it is added to what they have of deleted ones.
_KEEP_TOTALS: Final = f"""
INSERT INTO deleted_totals (counter, first, second, count)
{_COUNTED.format(of_run="AND run_id = %(run_id)s")}
ON CONFLICT (counter, first, second) DO UPDATE
SET count = deleted_totals.count + excluded.count
"""
Counts = dict[tuple[str, str], int]  # by kind and outcome, or by verb and state


def read_totals(connection: sql.Connection) -> dict[str, Counts]:
    """Incidents `closed`, commands `finished` and samples `dropped`, of all runs that there ever
    were."""
    found: dict[str, Counts] = {"closed": {}, "finished": {}, "dropped": {}}
    for counter, *labels, count in connection.exec_driver_sql(_TOTALS, {"final": [*FINAL]}):
        found[counter][labels[0], labels[1]] = count
    return found
