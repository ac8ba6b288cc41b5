"""The followers of events in this process, and the one thread that reads events for all of them.

Law: the database is asked only while somebody follows, once for all. Who does not read is let go,
and comes back with the place that they had reached. Nothing is told twice in a stream, and nothing
left out between two streams that are joined by a place. No token holds more streams, with those of
its sessions, than are left to all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event, Lock, Thread
from typing import Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from spikeguard_server.errors import Busy
from spikeguard_server.http.quotas import SharedQuota
from spikeguard_server.store.reads.feed import (
    PAGE,
    WINDOW,
    FeedPosition,
    Happening,
    happened_since,
    read_now,
)

MOST: Final = 500  # streams of one process
EVERY_S: Final = 0.5
UNREAD: Final = 2000  # entries that may wait for a slow reader
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Follower:
    """Somebody who follows a project or a run of it. None in the queue: it is over."""

    project: str | None
    run_id: UUID | None
    loop: asyncio.AbstractEventLoop
    grant: int  # the token whose stream it is, or that of one of its sessions
    queue: asyncio.Queue[Happening | None] = field(default_factory=asyncio.Queue)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    place: FeedPosition = field(default_factory=FeedPosition)  # where it began, once it is ready

    def wants(self, entry: Happening) -> bool:
        """Whether it is about what is followed."""
        if self.run_id is not None:
            return entry.run_id == self.run_id
        return self.project in (None, entry.project)

    def tell(self, entries: Sequence[Happening | None], before: FeedPosition | None = None) -> None:
        """Called from any thread. `before`: the place that they come behind, for the first time."""
        with suppress(RuntimeError):  # the loop has ended, and the stream with it
            self.loop.call_soon_threadsafe(self._take, entries, before)

    def _take(self, entries: Sequence[Happening | None], before: FeedPosition | None) -> None:
        if before is not None and not self.ready.is_set():
            self.place = before
        self.ready.set()
        for entry in entries:
            if self.queue.qsize() >= UNREAD:
                self.queue.put_nowait(None)  # too slow: over, after what waits
                return
            self.queue.put_nowait(entry)


class EventFeed:
    """Looks what happened, in whichever replica, and tells who follows here."""

    def __init__(self, engine: sql.Engine) -> None:
        self._engine = engine
        self._followers: set[Follower] = set()
        self._shares = SharedQuota(MOST, "streams of events are open")
        self._lock = Lock()
        self._wanted, self._stopping = Event(), Event()
        self._thread: Thread | None = None
        self._seen: FeedPosition | None = None  # None: nobody has followed for a while

    def start(self) -> None:
        """Begin to look, once somebody follows."""
        self._thread = Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End every stream; their readers go on elsewhere."""
        self._stopping.set()
        self._wanted.set()
        with self._lock:
            followers = list(self._followers)
        for follower in followers:
            follower.tell([None])

    def join(self, project: str | None, run_id: UUID | None, grant: int) -> Follower:
        """Follow from now on, until `leave`; raise `Busy` where too many do, or where this token
        does too often."""
        follower = Follower(project, run_id, asyncio.get_running_loop(), grant)
        with self._lock:
            if self._stopping.is_set():
                raise Busy("This server is stopping", "Ask again: another one answers")
            self._shares.take(grant)
            self._followers.add(follower)
        self._wanted.set()
        return follower

    def leave(self, follower: Follower) -> None:
        """Follow no longer."""
        with self._lock:
            if follower in self._followers:
                self._followers.remove(follower)
                self._shares.give_back(follower.grant)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait()
            try:
                self._look()
            except SQLAlchemyError as error:
                _log.warning("the feed waits for the database: %s", type(error).__name__)
            except Exception:
                _log.exception("the feed failed at a look, and looks again")
            self._stopping.wait(EVERY_S)
            with self._lock:
                if not self._followers and not self._stopping.is_set():
                    self._wanted.clear()
                    self._seen = None

    def _look(self) -> None:
        """Tell what is new; the first look after a pause only finds out what is not."""
        first, seen = self._seen is None, self._seen or FeedPosition()
        with self._lock:
            followers = list(self._followers)
        before = seen.copy() if any(not each.ready.is_set() for each in followers) else None
        with self._engine.connect() as connection:
            now = read_now(connection)
            seen.at = min(seen.at or now, now)  # the clock may have been set back since
            found = _all_since(connection, seen.at - WINDOW, now + WINDOW)
            entries = [entry for entry in found if seen.fresh(entry)]
        self._seen = seen
        news, place = ([], seen) if first else (entries, before)
        for follower in followers:
            follower.tell(
                [entry for entry in news if follower.wants(entry)], place and place.copy()
            )


def _all_since(connection: sql.Connection, since: datetime, until: datetime) -> list[Happening]:
    """`until`: what a clock that was ahead has dated later was told in its time."""
    found: list[Happening] = []
    page = happened_since(connection, since, until=until)
    while page:
        found += page
        if len(page) < PAGE:
            break
        last = page[-1]
        after = (last.at, last.run_id, last.number)
        page = happened_since(connection, last.at - WINDOW, until=until, after=after)
    return found
