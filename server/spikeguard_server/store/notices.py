"""The outbox of notifications: written with what happened, read by the notifier.

Written in the transaction of the change itself, taken out in that of the conversations that it goes
to. Whoever takes it out skips what another replica has in hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.notification.topics import Topic
from spikeguard_server.store.engine import Statement, ask
from spikeguard_server.store.tables.core import commands, conversations, notices, runs

_N, _R, _K = notices.c, runs.c, conversations.c
MOST = 1000


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened to a run, or to an incident of it."""

    topic: Topic
    incident: int | None
    verb: str | None  # of the command, where it is about one


_ADD = """
INSERT INTO notices (run_id, at, topic, incident, command)
VALUES (%s, clock_timestamp(), %s, %s, %s)
"""


def notice(
    run_id: UUID, topic: Topic, incident: int | None = None, command: int | None = None
) -> Statement:
    """The statement that puts `topic` into the outbox."""
    return _ADD, (run_id, topic.value, incident, command)


def runs_with_notices(connection: sql.Connection, limit: int = MOST) -> Sequence[UUID]:
    """At most `limit` runs of which something waits in the outbox: the projects in turn, of each
    the run that has waited the longest first."""
    since = sql.select(_N.run_id, sql.func.min(_N.at).label("since")).group_by(_N.run_id).subquery()
    turn = sql.func.row_number().over(partition_by=_R.project, order_by=since.c.since)
    query = sql.select(_R.run_id).join(since, since.c.run_id == _R.run_id)
    return connection.execute(query.order_by(turn, since.c.since).limit(limit)).scalars().all()


def take_notices(connection: sql.Connection, run_id: UUID) -> list[Notice]:
    """What waits of the run, oldest first; out of the box once this transaction commits."""
    free = (
        sql.select(_N.id)
        .where(_N.run_id == run_id)
        .order_by(_N.id)
        .limit(MOST)
        .with_for_update(skip_locked=True)
    )
    gone = connection.execute(
        sql.delete(notices)
        .where(_N.run_id == run_id, _N.id.in_(free.scalar_subquery()))
        .returning(_N.id, _N.topic, _N.incident, _N.command)
    ).all()
    verbs = _verbs(connection, run_id, [row for row in gone if row.command is not None])
    return [
        Notice(Topic(row.topic), row.incident, verbs.get((row.incident, row.command)))
        for row in sorted(gone, key=lambda row: int(row.id))
    ]


def _verbs(
    connection: sql.Connection, run_id: UUID, rows: Sequence[Any]
) -> dict[tuple[int, int], str]:
    keys = {(row.incident, row.command) for row in rows}
    if not keys:
        return {}
    c = commands.c
    mine = sql.tuple_(c.incident, c.number).in_(keys)
    query = sql.select(c.incident, c.number, c.verb).where(c.run_id == run_id, mine)
    return {(row.incident, row.number): row.verb for row in connection.execute(query)}


def note_returned(connection: sql.Connection) -> None:
    """Runs that people were told are silent, and that send again: nobody wrote that down."""
    quiet = sql.exists().where(
        _K.run_id == _R.run_id, _K.incident == 0, sql.not_(_K.over), _K.told > 0
    )
    waiting = sql.exists().where(_N.run_id == _R.run_id, _N.topic == Topic.BACK.value)
    told = sql.exists().where(
        _K.run_id == _R.run_id, _K.incident == 0, sql.any_(_K.pending) == Topic.BACK.value
    )
    back = sql.select(_R.run_id).where(_R.state == "live", quiet, sql.not_(waiting), ~told)
    for run_id in connection.execute(back.limit(MOST)).scalars().all():
        ask(connection, notice(run_id, Topic.BACK))
