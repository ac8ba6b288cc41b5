"""Deletes runs: one a transaction, under its lock, and never while an attempt of it lives.

The audit of a deleted run stays, and the record of what belongs to no run names it too.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import RunId
from spikeguard_server.errors import StillTraining
from spikeguard_server.store.audit import append
from spikeguard_server.store.deleted_runs import remove_curves, remove_run
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.runs import RunRow, attempts_of, live_attempts, run_named
from spikeguard_server.store.tables.core import FLEET

REMOVE_S: Final = (
    5.0  # for a deleted run's samples while somebody waits; housekeeping does the rest
)


def delete_run(
    connection: sql.Connection, run: RunId, by: str, reason: str, silent_after: timedelta
) -> UUID:
    """Remove the run and everything of it but its audit; its curves are still to be removed."""
    row = _resting(connection, run, silent_after)
    remove_run(connection, row, database_now(connection))
    what = f"{row.attempts} attempts, {row.incidents} incidents"
    for key in (row.run_id, FLEET):
        append(
            connection, key, actor=by, action="deleted", subject=str(run), before=what,
            after=None, reason=reason,
        )  # fmt: skip
    return row.run_id


def finish_deletion(
    engine: sql.Engine, run_id: UUID, within_s: float, clock: Callable[[], float] = monotonic
) -> None:
    """Remove the curves of a deleted run, some rows a transaction, for `within_s` at most."""
    until = clock() + within_s
    more = True
    while more and clock() < until:
        with engine.begin() as connection:
            more = remove_curves(connection, run_id)


def _resting(connection: sql.Connection, run: RunId, silent_after: timedelta) -> RunRow:
    """The run under its lock; raise `StillTraining` where an attempt of it lives."""
    row = run_named(connection, run, locked=True)
    now, attempts = database_now(connection), attempts_of(connection, row.run_id)
    if live := live_attempts(attempts, row, now, silent_after):
        raise StillTraining(run, live[0].number, silent_after.total_seconds())
    return row
