"""Partitions by week: a segment's samples lie in those of the week in which it was opened.

A week's partitions are dropped only when every attempt of that week has been quiet for as long as
samples are kept, judged while nobody writes, and never the newest. Functions of the tables' owner
make and drop partitions, so that the server's role needs to own none. Incidents with their copied
samples, audit and reports lie in none.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Final

import sqlalchemy as sql

from spikeguard_server.store import audit
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.tables.core import FLEET, attempts, segments, weeks

LOCK: Final = 0x5745454B53  # "WEEKS"
LOCK_TIMEOUT_S: Final = 2  # for the moment in which a partition goes; tried again later


def make_partitions(connection: sql.Connection) -> None:
    """Make this week's partitions, unless they are there."""
    today = database_now(connection).date()
    starts = today - timedelta(days=today.weekday())
    there = sql.select(weeks.c.starts).where(weeks.c.starts == starts)
    if connection.scalar(there) is not None:
        return
    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK)))
    if connection.scalar(there) is not None:
        return  # another replica was first
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
    # Attached there, since made in place they would lock out everybody who reads or writes.
    connection.execute(sql.select(sql.func.partitions.make_partitions(starts)))
    connection.execute(sql.insert(weeks).values(starts=starts))


def old_weeks(connection: sql.Connection, days: float) -> list[date]:
    """Weeks that have been kept for long enough."""
    c = weeks.c
    newest = sql.select(sql.func.max(c.starts)).scalar_subquery()
    in_use = _in_use(database_now(connection) - timedelta(days=days))
    query = sql.select(c.starts).where(c.starts < newest, c.dropped_at.is_(None), ~in_use)
    return list(connection.execute(query.order_by(c.starts)).scalars())


def drop_partitions(connection: sql.Connection, week: date, days: float) -> bool:
    """Drop a week, if it is still there and out of use; says so in the audit."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
    this = sql.select(weeks.c.starts).where(weeks.c.starts == week).with_for_update()
    since = database_now(connection) - timedelta(days=days)
    out_of_use = this.where(weeks.c.dropped_at.is_(None), ~_in_use(since))
    if connection.scalar(out_of_use) is None:
        return False
    # A message that is writing to it just now is seen only once it has committed. The parents are
    # locked first, as dropping would: who found the partition there must not wait with it in hand.
    # All ingest waits meanwhile, so the second look reads this week's segments alone, by their
    # index.
    connection.exec_driver_sql(
        "LOCK TABLE ONLY public.chunks, ONLY public.layer_norms IN ACCESS EXCLUSIVE MODE"
    )
    if connection.scalar(out_of_use) is None:
        return False
    connection.execute(sql.select(sql.func.partitions.drop_partitions(week)))
    dropped = sql.update(weeks).where(weeks.c.starts == week).values(dropped_at=sql.func.now())
    connection.execute(dropped)
    audit.append(
        connection, FLEET, actor=audit.SERVER, action="drop", subject=f"samples of {week}",
        before=None, after=None, reason=f"no attempt of that week said anything for {days:g} days",
    )  # fmt: skip
    return True


def _in_use(since: datetime) -> sql.ColumnElement[bool]:
    """Whether an attempt in the week spoke since."""
    its = (segments.c.run_id == attempts.c.run_id) & (segments.c.attempt == attempts.c.number)
    recent = attempts.c.last_message_at > since
    spoke = sql.select(segments.c.run_id).join(attempts, its)
    return spoke.where(segments.c.week == weeks.c.starts, recent).exists()
