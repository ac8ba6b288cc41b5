"""The threads that tell people: one that looks what is due, a few that carry.

Law: any number of replicas may look at once. A channel that does not answer holds up its own
conversations and no other's, and never a message, a decision or the ticker. A server that is told
to stop does not wait for a channel: what travels then is told again by whoever comes next.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from threading import Event, Lock, Thread

import sqlalchemy as sql

from spikeguard_server.notify.dispatch import dispatch
from spikeguard_server.notify.telling import Count, tell, uncounted
from spikeguard_server.repository.conversations import Key, due_conversations
from spikeguard_server.repository.notices import note_returned, runs_with_notices
from spikeguard_server.settings import Settings

CARRIERS = 4
STOP_TIMEOUT_S = 3.0
Place = tuple[str, str]  # project, channel
_log = logging.getLogger(__name__)


class Notifier:
    """Tells until it is stopped."""

    def __init__(self, settings: Settings, engine: sql.Engine, count: Count = uncounted) -> None:
        self._settings, self._engine, self._count = settings, engine, count
        self._stopping = Event()
        self._thread: Thread | None = None
        self._carriers: dict[Place, Thread] = {}
        self._lock = Lock()

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
        with self._lock:
            carriers = list(self._carriers.values())
        for thread in (self._thread, *carriers):
            if thread is not None:
                thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._settings.notify_every_s):
            try:
                self._share_out(_lines(look(self._engine, self._settings)))
            except Exception:
                _log.exception("notifier: it is tried again")

    def _share_out(self, lines: Mapping[Place, Sequence[Key]]) -> None:
        """A channel's conversations go to one carrier at a time."""
        for place, keys in lines.items():
            with self._lock:
                if place in self._carriers or len(self._carriers) >= CARRIERS:
                    continue
                carrier = Thread(target=self._carry, args=(place, keys), daemon=True)
                self._carriers[place] = carrier
            carrier.start()

    def _carry(self, place: Place, keys: Sequence[Key]) -> None:
        """Until one fails: what the channel did not answer it will not answer now."""
        try:
            for key in keys:
                if self._stopping.is_set():
                    return
                if not tell(self._engine, key, self._settings, self._count):
                    return
        except Exception:
            _log.exception("notifier: channel %s of %s failed; it is tried again", *place[::-1])
        finally:
            with self._lock:
                del self._carriers[place]


def _lines(due: Sequence[tuple[str, Key]]) -> dict[Place, list[Key]]:
    lines: dict[Place, list[Key]] = {}
    for project, key in due:
        lines.setdefault((project, key.channel), []).append(key)
    return lines


def look(engine: sql.Engine, settings: Settings) -> Sequence[tuple[str, Key]]:
    """Empty the outbox into conversations; which of them are due, by project."""
    with engine.begin() as connection:
        note_returned(connection)
        waiting = runs_with_notices(connection)
    for run_id in waiting:
        with engine.begin() as connection:
            dispatch(connection, run_id, settings.history_after_s)
    with engine.connect() as connection:
        return due_conversations(connection)


def tell_all(engine: sql.Engine, settings: Settings) -> int:
    """Look once and tell what is due, one after the other; how many conversations that were."""
    due = look(engine, settings)
    for _, key in due:
        tell(engine, key, settings)
    return len(due)
