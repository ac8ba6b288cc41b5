"""Checkpoints and snapshots that agents have reported."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_protocol import Medium, TargetSaved
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables import core as tables

MAX_TARGETS = 1000  # of a run, that are looked at: whoever looks at the run, or a proposal, waits


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A target that exists."""

    name: str
    attempt: int
    segment: int
    step: int
    position: int
    medium: Medium
    damage: str | None = None  # what its writer found in its tensors


def save_target(
    connection: sql.Connection, run_id: UUID, attempt: int, saved: TargetSaved, now: datetime
) -> None:
    """The target exists; what had its name before is gone."""
    values = {
        "attempt": attempt, "segment": saved.segment, "step": saved.step,
        "position": saved.position, "medium": saved.medium.value, "saved_at": now,
        "deleted_at": None, "damage": saved.damage and storable(saved.damage),
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
    c = tables.targets.c
    connection.execute(
        sql.update(tables.targets)
        .where(c.run_id == run_id, c.name == name, c.attempt <= attempt)
        .where(c.deleted_at.is_(None))
        .values(deleted_at=now)
    )


def targets_of(connection: sql.Connection, run_id: UUID, attempt: int) -> list[TargetRow]:
    """What `attempt` could roll back to, by step: of all on disk, and of what it holds in memory
    itself, those of the highest steps."""
    c = tables.targets.c
    rows = connection.execute(
        sql.select(c.name, c.attempt, c.segment, c.step, c.position, c.medium, c.damage)
        .where(c.run_id == run_id, c.deleted_at.is_(None))
        .where(sql.or_(c.medium == Medium.DISK.value, c.attempt == attempt))
        .order_by(c.step.desc(), c.name)
        .limit(MAX_TARGETS)
    ).all()[::-1]
    return [TargetRow(*row[:5], Medium(row.medium), row.damage) for row in rows]


def forget_memory(connection: sql.Connection, run_id: UUID, attempt: int, now: datetime) -> None:
    """The attempt ended, and its memory with it."""
    c = tables.targets.c
    connection.execute(
        sql.update(tables.targets)
        .where(c.run_id == run_id, c.attempt == attempt, c.medium == Medium.MEMORY.value)
        .where(c.deleted_at.is_(None))
        .values(deleted_at=now)
    )
