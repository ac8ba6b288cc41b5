"""Deleted runs: everything of a run removed but its audit and its figures, and what a
later run of its name is made from.

Invariants: whoever deletes holds the run's lock. The run itself and what refers to it go in one
transaction; its curves, which nothing refers to, go in small ones after it, and a deletion that was
cut off there is finished by housekeeping. A run that begins under the name again counts attempts,
incidents and detector versions on, so that no id, no key and no kept detector means two things.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_server.store.fleet_totals import keep_totals
from spikeguard_server.store.runs import RunRow
from spikeguard_server.store.tables.core import (
    audit,
    chunks,
    deleted_runs,
    detector_states,
    layer_norms,
    metadata,
)

CURVES: Final = (chunks, layer_norms)  # partitioned, and large
KEPT: Final = (audit, deleted_runs)
ROWS: Final = 500  # of curves, in one transaction
_D = deleted_runs.c


@dataclass(frozen=True, slots=True)
class Former:
    """What the newest deleted run of a name had come to."""

    attempts: int
    incidents: int
    detector_version: int


def former_run(connection: sql.Connection, run_id: UUID) -> Former | None:
    """The deleted run of this name; None if there never was one."""
    query = sql.select(_D.attempts, _D.incidents, _D.detector_version).where(_D.run_id == run_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else Former(*row)


def remove_run(connection: sql.Connection, run: RunRow, now: datetime) -> None:
    """Delete the locked run and everything that refers to it; its curves are still to be removed.

    Tables are found by their `run_id`, children first, so that a new one is not forgotten."""
    _remember(connection, run, now)
    keep_totals(connection, run.run_id)
    for table in reversed(metadata.tables.values()):
        if "run_id" in table.c and table not in (*CURVES, *KEPT):
            connection.execute(sql.delete(table).where(table.c.run_id == run.run_id))


def _remember(connection: sql.Connection, run: RunRow, now: datetime) -> None:
    s = detector_states.c
    version = connection.scalar(sql.select(s.version).where(s.run_id == run.run_id)) or 0
    before = former_run(connection, run.run_id)
    values = {
        "project": run.project, "name": run.name, "deleted_at": now, "attempts": run.attempts,
        "incidents": run.incidents, "curves_left": True,
        "detector_version": max(version, before.detector_version if before else 0),
    }  # fmt: skip
    connection.execute(
        insert(deleted_runs)
        .values(run_id=run.run_id, **values)
        .on_conflict_do_update(index_elements=["run_id"], set_=values)
    )


def runs_with_curves_left(connection: sql.Connection) -> list[UUID]:
    """Deleted runs of which samples are still there; read without a lock."""
    return list(connection.execute(sql.select(_D.run_id).where(_D.curves_left)).scalars())


def remove_curves(connection: sql.Connection, run_id: UUID) -> bool:
    """Delete some rows of a deleted run's curves; False once none is left."""
    former = former_run(connection, run_id)
    if former is None:
        return False
    for table in CURVES:
        of_run = (table.c.run_id == run_id) & (table.c.attempt <= former.attempts)
        key = [column for column in table.primary_key if column.name != "run_id"]
        some = sql.select(*key).where(of_run).limit(ROWS)
        gone = sql.delete(table).where(of_run, sql.tuple_(*key).in_(some))
        if connection.execute(gone).rowcount:
            return True
    connection.execute(
        sql.update(deleted_runs).where(_D.run_id == run_id).values(curves_left=False)
    )
    return False
