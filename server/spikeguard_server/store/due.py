"""What is due by time alone, and when a proposal that waits for an answer is escalated next.

Listed without locks; whoever acts on it looks again under the run's lock. Projects take turns, so
that one of which much is due holds up no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.lifecycle.command_life import WAITING
from spikeguard_protocol import CommandState
from spikeguard_server.settings import Settings
from spikeguard_server.store.commands import UNFINISHED
from spikeguard_server.store.paging import Row
from spikeguard_server.store.runs import ENDED, LIVE
from spikeguard_server.store.tables import core as tables
from spikeguard_server.store.tables.core import commands, policies

AT_ONCE: Final = 1000  # runs of one list
_R, _A, _C, _I = tables.runs.c, tables.attempts.c, tables.commands.c, tables.incidents.c
_P = policies.c


def runs_due(
    connection: sql.Connection, settings: Settings, now: datetime, limit: int = AT_ONCE
) -> list[UUID]:
    """At most `limit` runs on which time has had an effect that nobody wrote down yet, the projects
    in turn; of each those first whose command waits, then those that were silent the longest."""
    unanswered = sql.select(_C.run_id).where(*_late_answer(now))
    waiting = sql.union(_unfinished(settings, now), unanswered).subquery()
    silent_since, lost_since, over_since = (
        now - timedelta(seconds=seconds)
        for seconds in (settings.silent_after_s, settings.lost_after_s, settings.ended_after_s)
    )
    unfinished = sql.or_(
        _R.state != ENDED, _R.open_incident.is_not(None), _R.followed_to.is_not(None)
    )
    due = sql.union(
        sql.select(_R.run_id).where(_R.state == LIVE, _R.last_message_at <= silent_since),
        sql.select(_R.run_id).where(unfinished, _R.last_message_at <= over_since),
        sql.select(_A.run_id).where(
            _A.ended_at.is_(None), _A.lost.is_(False), _A.last_message_at <= lost_since
        ),
        sql.select(waiting.c.run_id),
    ).subquery()
    waits = _R.run_id.in_(sql.select(waiting.c.run_id))
    order = (sql.not_(waits), _R.last_message_at, _R.run_id)
    turn = sql.func.row_number().over(partition_by=_R.project, order_by=order)
    query = sql.select(_R.run_id).join(due, due.c.run_id == _R.run_id).order_by(turn, *order)
    return list(connection.execute(query.limit(limit)).scalars())


def _unfinished(settings: Settings, now: datetime) -> sql.Select[UUID]:
    """What is too late, or was approved and not fetched yet: the kill switch takes it back."""
    late = sql.or_(_C.expires_at <= now, _C.expires_at_step <= _R.last_step)
    overdue = _C.delivered_at <= now - timedelta(seconds=settings.lost_after_s)
    return (
        sql.select(_C.run_id)
        .join(tables.runs, _R.run_id == _C.run_id)
        .where(UNFINISHED, late | (_C.state == CommandState.APPROVED.value))
        .where((_C.state != CommandState.DELIVERED.value) | overdue)
    )


def due_escalations(connection: sql.Connection, run_id: UUID, now: datetime) -> Sequence[Row]:
    """Commands of the run of which the next level is to be told."""
    mine = sql.select(commands).where(_C.run_id == run_id, *_late_answer(now))
    return connection.execute(mine).all()


def _late_answer(now: datetime) -> tuple[sql.ColumnElement[bool], ...]:
    """An incident that somebody has acknowledged waits for them."""
    waits = _C.state.in_([state.value for state in WAITING])
    acknowledged = sql.exists().where(
        _I.run_id == _C.run_id, _I.number == _C.incident, _I.acknowledged_at.is_not(None)
    )
    return _C.escalates_at <= now, waits, ~acknowledged


def set_escalation(
    connection: sql.Connection, due: Row, level: int, escalates_at: datetime | None
) -> None:
    """`level` is told of what is due; the next at `escalates_at`, or never."""
    this = sql.tuple_(_C.run_id, _C.incident, _C.number) == (due.run_id, due.incident, due.number)
    connection.execute(
        sql.update(commands).where(this).values(escalation=level, escalates_at=escalates_at)
    )
