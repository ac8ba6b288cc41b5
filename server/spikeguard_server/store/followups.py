"""What is to be done because of an incident, as it is written and read.

Invariants: whoever writes holds the run's lock. A number is never given twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import FollowupState
from spikeguard_server.domain.lifecycle.followup_life import Kept, ProposedFollowup, reconciled
from spikeguard_server.store import audit
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables.core import incidents, runs
from spikeguard_server.store.tables.followups import followups

MAX_FOLLOWUPS: Final = 100  # of an incident
MAX_TEXT: Final = 2000  # characters
_F = followups.c


def read_followups(connection: sql.Connection, run_id: UUID, incident: int) -> Sequence[Row]:
    """All of an incident, by number."""
    mine = (_F.run_id == run_id) & (_F.incident == incident)
    return connection.execute(sql.select(followups).where(mine).order_by(_F.number)).all()


def read_followup(
    connection: sql.Connection, run_id: UUID, incident: int, number: int
) -> Row | None:
    """One of them; None where there is none of that number."""
    mine = (_F.run_id == run_id) & (_F.incident == incident) & (_F.number == number)
    return connection.execute(sql.select(followups).where(mine)).one_or_none()


def add_followup(
    connection: sql.Connection, run_id: UUID, incident: int, text: str, by: str, now: datetime, *,
    rule: str | None = None, owner: str | None = None,
) -> int:  # fmt: skip
    """Write a new one; its number."""
    mine = (_F.run_id == run_id) & (_F.incident == incident)
    highest = connection.execute(sql.select(sql.func.max(_F.number)).where(mine)).scalar_one()
    number = int(highest or 0) + 1
    connection.execute(
        sql.insert(followups).values(
            run_id=run_id, incident=incident, number=number, rule=rule,
            text=storable(text)[:MAX_TEXT], state=FollowupState.OPEN.value,
            owner=None if owner is None else storable(owner), revision=1, created_at=now,
            created_by=storable(by), changed_at=now, changed_by=storable(by),
        )
    )  # fmt: skip
    return number


def update_followup(
    connection: sql.Connection, run_id: UUID, incident: int, number: int, by: str, now: datetime,
    columns: dict[str, Any],
) -> None:  # fmt: skip
    """Write what a person changed."""
    mine = (_F.run_id == run_id) & (_F.incident == incident) & (_F.number == number)
    connection.execute(
        sql.update(followups)
        .where(mine)
        .values(revision=_F.revision + 1, changed_at=now, changed_by=storable(by), **columns)
    )


def keep_followups(
    connection: sql.Connection, run_id: UUID, incident: int, subject: str,
    asked: Sequence[ProposedFollowup], now: datetime,
) -> None:  # fmt: skip
    """Make the stored ones those that a post-mortem asks for, and leave what people touched."""
    found = [row for row in read_followups(connection, run_id, incident) if row.rule is not None]
    kept = [Kept(row.rule, row.text, row.revision > 1) for row in found]
    told = [
        ProposedFollowup(one.rule, storable(one.text)[:MAX_TEXT]) for one in asked[:MAX_FOLLOWUPS]
    ]
    plan = reconciled(kept, told)
    mine = (_F.run_id == run_id) & (_F.incident == incident)
    for one in plan.reworded:
        connection.execute(
            sql.update(followups).where(mine, _F.rule == one.rule).values(text=one.text)
        )
    if plan.gone:
        connection.execute(sql.delete(followups).where(mine, _F.rule.in_(plan.gone)))
    for one in plan.new:
        add_followup(connection, run_id, incident, one.text, audit.SERVER, now, rule=one.rule)
    if plan.new or plan.gone:
        before = None if not plan.gone else f"{len(plan.gone)} fewer"
        audit.append(
            connection, run_id, actor=audit.SERVER, action="follow_up", subject=subject,
            before=before, after=f"{len(plan.new)} more", reason="the post-mortem asks for them",
        )  # fmt: skip


def open_followups(
    connection: sql.Connection, project: str | None, run_id: UUID | None, limit: int
) -> tuple[Sequence[Row], int]:
    """Open ones, the oldest first, with the names of their runs; and how many there are."""
    query = (
        sql.select(followups, runs.c.project, runs.c.name, incidents.c.kind)
        .join(runs, runs.c.run_id == _F.run_id)
        .join(
            incidents,
            (incidents.c.run_id == _F.run_id) & (incidents.c.number == _F.incident),
        )
        .where(_F.state == FollowupState.OPEN.value)
    )
    if project is not None:
        query = query.where(runs.c.project == project)
    if run_id is not None:
        query = query.where(_F.run_id == run_id)
    count = connection.execute(sql.select(sql.func.count()).select_from(query.subquery()))
    ordered = query.order_by(_F.created_at, _F.run_id, _F.incident, _F.number).limit(limit)
    return connection.execute(ordered).all(), int(count.scalar_one())
