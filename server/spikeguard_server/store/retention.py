"""Retention: deletes old delivery logs, closed conversations, spent links, ended sessions.

Law: audit, incidents and decisions stay, so who decided what stays with them. Nothing that waits,
that is in somebody's hands or that may have to be taken back goes, however old it is. A few rows of
one run at a time, without the run's lock: nobody waits for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.store.clock import database_now
from spikeguard_server.store.tables.core import incidents, runs, tokens
from spikeguard_server.store.tables.notices import approval_links, conversations, deliveries

AT_ONCE: Final = 1000  # rows of a statement, runs of a list
_D, _K, _L, _T = deliveries.c, conversations.c, approval_links.c, tokens.c


def old_before(connection: sql.Connection, days: float) -> datetime:
    """Midnight UTC so many days ago, by the database's clock: a day's worth goes at once."""
    moment = database_now(connection) - timedelta(days=days)
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def runs_with_old(connection: sql.Connection, before: datetime) -> list[UUID]:
    """Runs of which something is told by older rows than `before`."""
    found: set[UUID] = set()
    for query in (
        sql.select(_D.run_id).where(_D.at < before),
        sql.select(_L.run_id).where(_L.expires_at < before),
        sql.select(_K.run_id).where(*_over(before)),
    ):
        found.update(connection.execute(query.distinct().limit(AT_ONCE)).scalars())
    return sorted(found)


def drop_old(connection: sql.Connection, run_id: UUID, before: datetime) -> dict[str, int]:
    """Delete at most `AT_ONCE` old rows of each kind of one run; how many of which went."""
    return {
        "deliveries": _drop(
            connection, run_id, deliveries, (_D.run_id, _D.id), (_D.at < before,)
        ),
        "approval links": _drop(
            connection, run_id, approval_links, (_L.run_id, _L.id), (_L.expires_at < before,)
        ),
        "conversations": _drop(
            connection, run_id, conversations, (_K.run_id, _K.incident, _K.channel), _over(before)
        ),
    }  # fmt: skip


def drop_ended_sessions(connection: sql.Connection, before: datetime) -> int:
    """Delete sessions that ended before; tokens stay, since the audit speaks of them by number."""
    ended = (_T.expires_at < before) | (_T.revoked_at < before)
    old = sql.select(_T.id).where(_T.parent.is_not(None), ended).limit(AT_ONCE)
    return connection.execute(sql.delete(tokens).where(_T.id.in_(old.scalar_subquery()))).rowcount


def _over(before: datetime) -> tuple[sql.ColumnElement[bool], ...]:
    """Conversations in which nothing waits, about what has been over since before."""
    i, r = incidents.c, runs.c
    closed = sql.exists().where(
        i.run_id == _K.run_id, i.number == _K.incident, i.closed_at < before
    )
    ended = sql.exists().where(
        r.run_id == _K.run_id, _K.incident == 0, r.state == "ended", r.last_message_at < before
    )
    free = _K.leased_until.is_(None) | (_K.leased_until < sql.func.now())
    return _K.due_at.is_(None), free, closed | ended


def _drop(
    connection: sql.Connection,
    run_id: UUID,
    table: sql.Table,
    key: Sequence[sql.ColumnElement[Any]],
    old: Sequence[sql.ColumnElement[bool]],
) -> int:
    mine = key[0] == run_id
    chosen = sql.select(*key).where(mine, *old).limit(AT_ONCE).with_for_update(
        skip_locked=True, of=table
    )  # fmt: skip
    done = connection.execute(sql.delete(table).where(mine, sql.tuple_(*key).in_(chosen)))
    return done.rowcount
