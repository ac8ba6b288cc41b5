"""Conversations: what one channel is told of one incident. They are the outbox of notifications:
what is to be told is written with what happened. And the delivery log.

One sender at a time: a conversation is claimed by a lease that ends by itself, so that a sender
that was killed is followed by another. What is added while a message travels is told after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import ARRAY

from spikeguard_core.notification.delivery import Result
from spikeguard_core.notification.topics import Topic
from spikeguard_server.store.engine import Statement, row_as
from spikeguard_server.store.paging import PageWanted, Row, read_page
from spikeguard_server.store.tables.core import conversations, deliveries, runs

LEASE = timedelta(seconds=90)  # longer than the longest sending
EACH = 20  # conversations of one channel that are handed out at a time
_K, _D = conversations.c, deliveries.c


class Key(NamedTuple):
    """Which conversation."""

    run_id: UUID
    incident: int  # 0 = the run itself
    channel: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation that is ours until the lease ends."""

    key: Key
    project: str
    pending: frozenset[Topic]
    version: int
    failures: int
    told: int
    told_at: datetime | None
    held_for: str | None
    leased_until: datetime


_TELL = """
INSERT INTO conversations
    (run_id, incident, channel, project, pending, version, due_at, failures, told, over, given_up)
SELECT r.run_id, %(incident)s, coalesce(c.name, ''), r.project, ARRAY[%(topic)s], 1,
       clock_timestamp(), 0, 0, false, false
FROM runs r LEFT JOIN channels c ON c.project = r.project
WHERE r.run_id = %(run_id)s AND coalesce(c.name = %(channel)s::text, true)
ORDER BY c.name
ON CONFLICT (run_id, incident, channel) DO UPDATE
SET pending = conversations.pending || excluded.pending, version = conversations.version + 1,
    due_at = least(conversations.due_at, excluded.due_at), over = false
"""
_GO_ON = """
UPDATE conversations SET pending = pending || ARRAY[%(topic)s], version = version + 1,
                         due_at = least(due_at, clock_timestamp())
WHERE run_id = %(run_id)s AND incident = %(incident)s AND NOT over
AND (told > 0 OR due_at IS NOT NULL)
"""


def tell(run_id: UUID, incident: int, topic: Topic, channel: str | None = None) -> Statement:
    """The statement that lets `topic` be told on every channel of the run's project, or on
    `channel`; where the project has none, that nobody can be told.

    Due at once, unless the conversation waits for something already. Whether the channel asks for
    it is judged when it is told. That a run sends again, or ended, is told where its silence was:
    most runs simply finish.
    """
    text = _GO_ON if topic in (Topic.BACK, Topic.ENDED) else _TELL
    return text, {
        "run_id": run_id, "incident": incident, "topic": topic.value, "channel": channel,
    }  # fmt: skip


def due_conversations(connection: sql.Connection, limit: int = 200) -> list[tuple[str, Key]]:
    """Project and key of what is to be told now and in nobody's hands: of every project one, then
    of every project the next, so that none is left out because another has much to tell. Of a
    project its channels take turns; within a channel who failed least often, then who is due the
    longest: a message that fails for what it says keeps no other one waiting."""
    now, place = sql.func.statement_timestamp(), (_K.project, _K.channel)
    free = (_K.due_at <= now) & (_K.leased_until > now).is_not(True)
    turn = sql.func.row_number().over(
        partition_by=(*place, free), order_by=(_K.failures, _K.due_at)
    )
    waiting = (
        sql.select(*place, _K.run_id, _K.incident, _K.due_at)
        .add_columns(free.label("free"), turn.label("turn"))
        .where(_K.due_at.is_not(None))
        .subquery()
    )
    w = waiting.c
    of_project = sql.func.row_number().over(partition_by=w.project, order_by=(w.turn, w.due_at))
    rows = connection.execute(
        sql.select(waiting)
        .where(w.free, w.turn <= EACH)
        .order_by(of_project, w.due_at)
        .limit(limit)
    )
    return [(row.project, Key(row.run_id, row.incident, row.channel)) for row in rows]


def claim(connection: sql.Connection, key: Key) -> Conversation | None:
    """Take a due conversation in hand; None where another sender was first."""
    now = sql.func.clock_timestamp()
    free = _free(*_is(key), _K.due_at <= now, (_K.leased_until > now).is_not(True))
    claimed = sql.update(conversations).where(free).values(leased_until=now + LEASE)
    row = connection.execute(claimed.returning(conversations)).one_or_none()
    if row is None:
        return None
    return row_as(Conversation, row, key=key, pending=frozenset(map(Topic, row.pending)))


def settle(
    connection: sql.Connection,
    held: Conversation,
    *,
    sent: bool,
    over: bool = False,
    given_up: bool = False,
) -> bool:
    """What was pending is told, or will not be; what came meanwhile is due. `given_up`: it stays
    counted as failing until something arrives on its channel. False, and nothing is written of it,
    where the lease ended and another sender has it."""
    more = _K.version != held.version
    now = sql.func.clock_timestamp()
    told: dict[str, Any] = {"told": _K.told + 1, "told_at": now} if sent else {}
    if given_up:
        told["given_up"] = True
    ours = _update(
        connection, held,
        pending=sql.case((more, _K.pending), else_=sql.cast([], ARRAY(sql.Text))),
        due_at=sql.case((more, now), else_=None), over=sql.case((more, False), else_=over),
        leased_until=None, failures=0, held_for=None, **told,
    )  # fmt: skip
    if sent:
        channel_works(connection, held.project, held.key.channel)
    return ours


def channel_works(connection: sql.Connection, project: str, channel: str) -> None:
    """Something arrived there, or it is no channel any more: what was given up before is history.

    Rows that another sender holds are left to the next message that arrives."""
    lost = _free(_K.project == project, _K.channel == channel, _K.given_up)
    connection.execute(sql.update(conversations).where(lost).values(given_up=False))


def lost_channels(connection: sql.Connection, run_id: UUID, incident: int) -> list[str]:
    """Channels that did not get a message of this conversation, by name."""
    query = sql.select(_K.channel).where(_K.run_id == run_id, _K.incident == incident, _K.given_up)
    return list(connection.execute(query.order_by(_K.channel)).scalars())


def postpone(
    connection: sql.Connection,
    held: Conversation,
    wait_s: float,
    *,
    failures: int = 0,
    reason: str | None = None,
) -> None:
    """Try again after `wait_s`; at once where something came meanwhile and nothing failed. Nothing
    is written where the lease ended and another sender has it."""
    now = sql.func.clock_timestamp()
    later = now + timedelta(seconds=wait_s)
    due = later if failures else sql.case((_K.version != held.version, now), else_=later)
    _update(connection, held, due_at=due, leased_until=None, failures=failures, held_for=reason)


def put_off(connection: sql.Connection, key: Key, wait_s: float) -> None:
    """Leave a conversation alone for a while: it cannot be told as it stands."""
    later = sql.func.clock_timestamp() + timedelta(seconds=wait_s)
    connection.execute(sql.update(conversations).where(*_is(key)).values(due_at=later))


def _update(connection: sql.Connection, held: Conversation, **columns: Any) -> bool:
    mine = sql.update(conversations).where(*_is(held.key), _K.leased_until == held.leased_until)
    return bool(connection.execute(mine.values(**columns)).rowcount)


def wake(connection: sql.Connection, project: str) -> None:
    """Look again at everything of a project that waits: a silence was taken back."""
    waits = _free(_K.project == project, _K.due_at.is_not(None), _K.failures == 0)
    now = sql.func.clock_timestamp()
    connection.execute(sql.update(conversations).where(waits).values(due_at=now))


def log(
    connection: sql.Connection, key: Key, project: str, topics: Iterable[Topic], result: Result,
    reason: str, took_ms: float | None = None,
) -> None:  # fmt: skip
    """Add to the delivery log."""
    connection.execute(
        sql.insert(deliveries).values(
            at=sql.func.clock_timestamp(), run_id=key.run_id, incident=key.incident or None,
            channel=key.channel or None, project=project, topics=sorted(t.value for t in topics),
            result=result.value, reason=reason[:500], took_ms=took_ms,
        )
    )  # fmt: skip


def list_deliveries(
    connection: sql.Connection, project: str, page: PageWanted
) -> tuple[Sequence[Row], str | None]:
    """The delivery log of a project, newest first, and the cursor of the next page."""
    query: sql.Select[Any] = (
        sql.select(deliveries, runs.c.name.label("run"))
        .join(runs, runs.c.run_id == _D.run_id, isouter=True)
        .where(_D.project == project)
    )
    return read_page(connection, query, (_D.at, _D.id), page)


def _is(key: Key) -> tuple[sql.ColumnElement[bool], ...]:
    return _K.run_id == key.run_id, _K.incident == key.incident, _K.channel == key.channel


def _free(*which: sql.ColumnElement[bool]) -> sql.ColumnElement[bool]:
    """The rows that fit and that nobody holds: whoever holds one is about to write it."""
    key = (_K.run_id, _K.incident, _K.channel)
    free = sql.select(*key).where(*which).with_for_update(skip_locked=True)
    return sql.tuple_(*key).in_(free)
