"""Checkpoints and snapshots that agents have reported."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.policy.situation import Target
from spikeguard_protocol import Health, Medium, SegmentId, TargetSaved
from spikeguard_server.store.engine import Prepared, row_as
from spikeguard_server.store.tables import core as tables

MAX_TARGETS = 1000  # of a run, that are looked at: whoever looks at the run, or a proposal, waits


def save_target(
    connection: sql.Connection, run_id: UUID, attempt: int, saved: TargetSaved, now: datetime
) -> None:
    """The target exists; what had its name before is gone."""
    values = {
        "attempt": attempt, "segment": saved.segment, "step": saved.step,
        "position": saved.position, "medium": saved.medium.value, "saved_at": now,
        "deleted_at": None, "damage": saved.damage,
    }  # fmt: skip
    written = insert(tables.targets).values(run_id=run_id, name=saved.name, **values)
    connection.execute(
        written.on_conflict_do_update(
            index_elements=["run_id", "name"],
            set_=values,
            where=tables.targets.c.attempt <= attempt,
        )
    )


def delete_target(
    connection: sql.Connection, run_id: UUID, attempt: int, name: str, now: datetime
) -> None:
    """The target is gone, unless a newer attempt saved it anew."""
    _delete(connection, run_id, now, _T.name == name, _T.attempt <= attempt)


def targets_of(connection: sql.Connection, run_id: UUID, attempt: int) -> list[Target]:
    """What `attempt` could roll back to, by step, held to be suspect: of all on disk, and of what
    it holds in memory itself, those of the highest steps."""
    return [
        row_as(
            Target, r, segment=SegmentId(r.id, r.segment), medium=Medium(r.medium),
            health=Health.SUSPECT,
        )
        for r in _REACHED.rows(connection, key=run_id, here=attempt)[::-1]
    ]  # fmt: skip


_T, _A = tables.targets.c, tables.attempts.c
_REACHED = Prepared(
    sql.select(_T.name, _A.id, _T.segment, _T.step, _T.position, _T.medium, _T.damage)
    .join(tables.attempts, (_A.run_id == _T.run_id) & (_A.number == _T.attempt))
    .where(_T.run_id == sql.bindparam("key"), _T.deleted_at.is_(None))
    .where(sql.or_(_T.medium == Medium.DISK.value, _T.attempt == sql.bindparam("here")))
    .order_by(_T.step.desc(), _T.name)
    .limit(MAX_TARGETS)
)


def forget_memory(connection: sql.Connection, run_id: UUID, attempt: int, now: datetime) -> None:
    """The attempt ended, and its memory with it."""
    _delete(connection, run_id, now, _T.attempt == attempt, _T.medium == Medium.MEMORY.value)


def _delete(
    connection: sql.Connection, run_id: UUID, now: datetime, *which: sql.ColumnElement[bool]
) -> None:
    gone = sql.update(tables.targets).where(_T.run_id == run_id, _T.deleted_at.is_(None), *which)
    connection.execute(gone.values(deleted_at=now))
