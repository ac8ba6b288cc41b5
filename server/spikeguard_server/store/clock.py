"""The database's clock: everything is stored and judged by it, also where it jumps.

One row says how far the clock has jumped since the database was made; each process remembers how
far the wall clock lies ahead of its own, which nobody sets. Where the two differ, the first process
that sees it moves every stored deadline, and every sign of life that is waited for, by the same
step: what had ten minutes left has ten minutes left. Dates of what is over stay as they are.

Invariants
- A jump is moved once, in one transaction, while nobody writes to a run; whoever was first.
- From when a process sees a jump until the deadlines were moved, nothing is judged by the clock
  there: whoever asks is told to ask again.
- Nothing is deleted for its age unless that much time went by for the servers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_server.domain.lifecycle.clock import (
    ClockJump,
    Reading,
    jumped_s,
    jumped_unseen_s,
    moment_ago,
)
from spikeguard_server.errors import Unready
from spikeguard_server.store import audit
from spikeguard_server.store.tables import core as tables
from spikeguard_server.store.tables.clock import clock, clock_jumps
from spikeguard_server.store.tables.notices import (
    approval_links,
    conversations,
    escalations,
    notices,
    silences,
)

_log = logging.getLogger(__name__)
NOTE_S: Final = 60.0  # between two notes of how the clock was seen
LOCK_TIMEOUT_S: Final = 5
_UNFINISHED: Final = ("proposed", "approved_once", "approved", "delivered")
_NOW = sql.select(sql.func.clock_timestamp())
_SEEN = sql.select(sql.func.clock_timestamp(), clock.c.seen_at, clock.c.ahead_s)
_SEEN = _SEEN.select_from(sql.select().subquery("one").outerjoin(clock, clock.c.id == 1))


def steady_s() -> float:
    """A clock of this machine that nobody sets; it goes on while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _nobody() -> None:
    """Who is told of jumps until somebody is named."""


class ClockWatch:
    """How far this process saw the database's clock lie ahead of its own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._expected_s: float | None = None  # None: nobody has looked yet
        self._ahead_s = 0.0  # the jumps that are in it
        self._noted_s = -NOTE_S
        self.tell: Callable[[], None] = _nobody  # called at each jump that is seen here first

    def check(self, reading: Reading) -> None:
        """Raise `Unready` where the clock has jumped and the deadlines were not moved yet."""
        expected_s = self._expected_s
        if expected_s is not None and (jump_s := jumped_s(expected_s, reading)):
            raise Unready(
                f"The database's clock jumped by {_words(jump_s)}; deadlines are being moved",
                "Send it again in a moment",
                cause="clock_jump",
            )

    def settle(self, engine: sql.Engine) -> float:
        """Look at the clock, and move the deadlines if it jumped. By how much it did, seconds."""
        with self._lock:
            with engine.begin() as connection:
                jump_s, reading, ahead_s = self._look(connection)
            least_s, most_s = reading.distance_s
            expected_s = least_s if self._expected_s is None else self._expected_s
            self._expected_s, self._ahead_s = min(max(expected_s, least_s), most_s), ahead_s
        if jump_s:
            self.tell()
            _log.warning(
                "the database's clock jumped by %s, to %s: deadlines and signs of life were moved "
                "along, and what is deleted for its age is judged by the time that went by",
                _words(jump_s), f"{_utc(reading.wall_s):%Y-%m-%d %H:%M:%S} UTC",
            )  # fmt: skip
        return jump_s

    def _look(self, connection: sql.Connection) -> tuple[float, Reading, float]:
        """The jump that this process was the first to see, the reading, and all jumps so far."""
        reading, seen_at, ahead_s = _read(connection)
        jump_s = self._jump(reading, seen_at, ahead_s)
        if not jump_s:
            self._note(connection, reading, ahead_s)
            return 0.0, reading, ahead_s
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
        # Whoever has read the clock to judge a run by it holds that run's row until it is done.
        connection.exec_driver_sql("LOCK TABLE runs IN EXCLUSIVE MODE")
        reading, seen_at, ahead_s = _read(connection)
        jump_s = self._jump(reading, seen_at, ahead_s)
        if not jump_s:  # another replica was first, or the clock is back
            return 0.0, reading, ahead_s
        jump = ClockJump(reading.wall_s - jump_s, reading.wall_s)
        if self._expected_s is not None or jump_s < 0:
            _move(connection, timedelta(seconds=jump_s), _utc(jump.before_s))
            ahead_s += jump_s
        _write_jump(connection, jump, jump_s)
        self._note(connection, reading, ahead_s, at_once=True)
        return jump_s, reading, ahead_s

    def _jump(self, reading: Reading, seen_at: datetime | None, ahead_s: float) -> float:
        if self._expected_s is not None:
            return jumped_s(self._expected_s + ahead_s - self._ahead_s, reading)
        return 0.0 if seen_at is None else jumped_unseen_s(seen_at.timestamp(), reading.wall_s)

    def _note(
        self, connection: sql.Connection, reading: Reading, ahead_s: float, at_once: bool = False
    ) -> None:
        if not at_once and reading.after_s - self._noted_s < NOTE_S:
            return
        self._noted_s = reading.after_s
        seen = {"seen_at": _utc(reading.wall_s)}
        written = {**seen, "ahead_s": ahead_s} if at_once else seen
        row = insert(clock).values(id=1, ahead_s=ahead_s, **seen)
        connection.execute(row.on_conflict_do_update(index_elements=["id"], set_=written))


_WATCHES: WeakKeyDictionary[sql.Engine, ClockWatch] = WeakKeyDictionary()


def watch_of(engine: sql.Engine) -> ClockWatch:
    """The watch of the database behind this pool."""
    return _WATCHES.setdefault(engine, ClockWatch())


def database_now(connection: sql.Connection) -> datetime:
    """The database's clock: the only one by which validity is judged."""
    before_s = steady_s()
    now: datetime = connection.execute(_NOW).scalar_one()
    watch_of(connection.engine).check(Reading(now.timestamp(), before_s, steady_s()))
    return now


def stored_before(connection: sql.Connection, span: timedelta) -> datetime:
    """What is dated earlier was stored more than `span` of real time ago."""
    now_s = database_now(connection).timestamp()
    return _utc(moment_ago(_jumps(connection), now_s, span.total_seconds()))


def unjumped_now(connection: sql.Connection) -> datetime:
    """What the clock would say had it never jumped: by it partitions are named."""
    jumped_s = sum(jump.after_s - jump.before_s for jump in _jumps(connection))
    return database_now(connection) - timedelta(seconds=jumped_s)


def _read(connection: sql.Connection) -> tuple[Reading, datetime | None, float]:
    before_s = steady_s()
    wall, seen_at, ahead_s = connection.execute(_SEEN).one()
    return Reading(wall.timestamp(), before_s, steady_s()), seen_at, ahead_s or 0.0


def _jumps(connection: sql.Connection) -> list[ClockJump]:
    """Newest first."""
    c = clock_jumps.c
    found = connection.execute(sql.select(c.before, c.after).order_by(c.number.desc()))
    return [ClockJump(row.before.timestamp(), row.after.timestamp()) for row in found]


def _write_jump(connection: sql.Connection, jump: ClockJump, jump_s: float) -> None:
    before, after = _utc(jump.before_s), _utc(jump.after_s)
    number = sql.select(sql.func.coalesce(sql.func.max(clock_jumps.c.number), 0) + 1)
    connection.execute(
        sql.insert(clock_jumps).values(number=number.scalar_subquery(), before=before, after=after)
    )
    audit.append(
        connection, tables.FLEET, actor=audit.SERVER, action="clock_jumped",
        subject="the database's clock", before=before.isoformat(timespec="seconds"),
        after=after.isoformat(timespec="seconds"), reason=f"by {_words(jump_s)}",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Moved:
    """Columns of a table that move with the clock, where `rows` holds."""

    table: sql.Table
    columns: tuple[str, ...]
    rows: sql.ColumnElement[bool]


def _moved(before: datetime) -> tuple[_Moved, ...]:
    """Deadlines that have not passed, and what durations are counted from, as of `before`."""
    r, a, c, i = tables.runs.c, tables.attempts.c, tables.commands.c, tables.incidents.c
    lately = before - timedelta(days=2)  # as far as budgets of commands look back
    unended = (r.state != "ended") | r.open_incident.is_not(None) | r.followed_to.is_not(None)
    theirs = a.run_id.in_(sql.select(r.run_id).where(unended))
    t, k, e = tables.tokens.c, conversations.c, escalations.c
    open_links = approval_links.c.used_at.is_(None) & (approval_links.c.expires_at > before)
    waiting = k.due_at.is_not(None) | k.leased_until.is_not(None)
    working = t.revoked_at.is_(None) & (t.expires_at > before)
    counted = c.state.in_(_UNFINISHED) | (c.proposed_at > lately)
    return (
        _Moved(tables.attempts, ("started_at", "last_message_at", "alive_at"), theirs),
        _Moved(tables.runs, ("last_message_at",), unended),
        _Moved(
            tables.commands,
            ("proposed_at", "first_approved_at", "decided_at", "delivered_at", "expires_at"),
            counted,
        ),
        _Moved(tables.incidents, ("report_due_at",), i.report_due_at.is_not(None)),
        _Moved(escalations, ("began_at", "next_at"), e.next_at.is_not(None)),
        _Moved(conversations, ("due_at", "leased_until", "told_at"), waiting),
        _Moved(notices, ("at",), sql.true()),
        _Moved(approval_links, ("made_at", "expires_at"), open_links),
        _Moved(silences, ("begins_at", "ends_at"), silences.c.ends_at > before),
        _Moved(tables.tokens, ("created_at", "signed_in_at", "expires_at"), working),
    )  # fmt: skip


def _move(connection: sql.Connection, by: timedelta, before: datetime) -> None:
    for each in _moved(before):
        moved = {name: each.table.c[name] + by for name in each.columns}
        connection.execute(sql.update(each.table).where(each.rows).values(moved))


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _words(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{timedelta(seconds=round(abs(seconds)))}"
