"""The notifier's threads: one finds due conversations, a few send them.

Any number of replicas may look at once. A channel that does not answer holds up its own
conversations and no other's, and never a message, a decision or the ticker; channels that did not
answer lately share a few of the lanes, so that no number of them takes up all. What cannot be read
of one run or conversation holds up no other. A server that is told to stop does not wait for a
channel: what travels then is told again by whoever comes next.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from threading import BoundedSemaphore, Event, Thread
from time import monotonic

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from spikeguard_server.notify.telling import Count, deliver, uncounted
from spikeguard_server.retries import survive
from spikeguard_server.settings import Settings
from spikeguard_server.store.conversations import Key, due_conversations, put_off

CHANNELS = 12  # that are told at once
OF_A_PROJECT = 8  # of them
AT_ONCE = 2  # connections that carriers hold at once
PUT_OFF_S = 60.0  # what cannot be told as it stands
STOP_TIMEOUT_S = 3.0
Place = tuple[str, str]  # project, channel
_log = logging.getLogger(__name__)


class Notifier:
    """Tells until it is stopped."""

    def __init__(self, settings: Settings, engine: sql.Engine, count: Count = uncounted) -> None:
        self._settings, self._engine, self._count = settings, engine, count
        self._stopping = Event()
        self._thread: Thread | None = None
        self._carriers: dict[Place, Thread] = {}  # of the notifier's thread alone
        self._connections = BoundedSemaphore(AT_ONCE)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        self._stopping.clear()
        self._thread = Thread(target=self._run, name="notifier", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait a little for what travels."""
        self._stopping.set()
        until = monotonic() + STOP_TIMEOUT_S
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
        for carrier in tuple(self._carriers.values()):
            carrier.join(max(0.0, until - monotonic()))

    def _run(self) -> None:
        while not self._stopping.wait(self._settings.notify_every_s):
            survive(self._look, "notifier")

    def _look(self) -> None:
        """A channel's conversations go to one carrier at a time."""
        due: dict[Place, list[Key]] = {}
        for project, key in look(self._engine):
            due.setdefault((project, key.channel), []).append(key)
        self._carriers = {place: one for place, one in self._carriers.items() if one.is_alive()}
        for place, keys in due.items():
            of_project = sum(project == place[0] for project, _ in self._carriers)
            full = len(self._carriers) >= CHANNELS or of_project >= OF_A_PROJECT
            if not full and place not in self._carriers:
                carrier = Thread(None, self._carry, "notifier", (place, keys), daemon=True)
                carrier.start()  # before its place is taken: where no thread can be had, it is free
                self._carriers[place] = carrier

    def _carry(self, place: Place, keys: Sequence[Key]) -> None:
        """Until the channel does not answer: what it did not answer it will not answer now."""
        for key in keys:
            if self._stopping.is_set() or not self._tell(place, key):
                return

    def _tell(self, place: Place, key: Key) -> bool:
        """Whether to go on with the next."""
        try:
            return deliver(self._engine, key, self._settings, self._count, self._connections)
        except SQLAlchemyError:
            _log.exception("notifier: channel %s of %s waits for the database", *place[::-1])
            return False
        except Exception:
            _log.exception("notifier: a message to channel %s of %s is put off", *place[::-1])
            with suppress(SQLAlchemyError), self._connections, self._engine.begin() as connection:
                put_off(connection, key, PUT_OFF_S)
            return True


def look(engine: sql.Engine) -> Sequence[tuple[str, Key]]:
    """Which conversations are due."""
    with engine.begin() as connection:
        return due_conversations(connection)
