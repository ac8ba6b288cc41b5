"""Proposals that wait for an answer, and when their next escalation is due.

Law: written under the run's lock; a row ends with its command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_server.store.responses import acknowledged
from spikeguard_server.store.tables.people import escalations

_E = escalations.c


@dataclass(frozen=True, slots=True)
class Escalation:
    """A proposal whose next level is due."""

    incident: int
    command: int
    level: int  # told so far
    began_at: datetime


def begin_escalation(
    connection: sql.Connection,
    run_id: UUID,
    incident: int,
    command: int,
    waits: Sequence[float],
    now: datetime,
) -> None:
    """Tell the first level after the first of `waits`, seconds, if there is any."""
    if waits:
        connection.execute(
            insert(escalations)
            .values(
                run_id=run_id, incident=incident, command=command, level=0, began_at=now,
                next_at=now + timedelta(seconds=waits[0]),
            )
            .on_conflict_do_nothing()
        )  # fmt: skip


def due_escalations(connection: sql.Connection, run_id: UUID, now: datetime) -> list[Escalation]:
    """What is due of the run; an incident that somebody has acknowledged waits for them."""
    rows = connection.execute(
        sql.select(_E.incident, _E.command, _E.level, _E.began_at).where(
            _E.run_id == run_id, _E.next_at <= now, ~acknowledged(_E.run_id, _E.incident)
        )
    )
    return [Escalation(*row) for row in rows]


def go_on(
    connection: sql.Connection,
    run_id: UUID,
    due: Escalation,
    level: int,
    next_at: datetime | None,
) -> None:
    """`level` is told; the next is due at `next_at`, or never."""
    connection.execute(
        sql.update(escalations)
        .where(_E.run_id == run_id, _E.incident == due.incident, _E.command == due.command)
        .values(level=level, next_at=next_at)
    )
