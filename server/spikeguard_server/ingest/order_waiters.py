"""Who waits for a run's orders in this process, and the thread that wakes them.

Law: a wait holds no connection of the pool; one connection a process listens for all. While it is
lost nobody waits long: they ask again, which is polling, once a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for
from socket import socket, socketpair
from threading import Event, Lock, Thread
from typing import Final
from uuid import UUID

import psycopg

from spikeguard_server.errors import Busy
from spikeguard_server.settings import Settings
from spikeguard_server.store.order_notifier import listening, notified

MAX_WAITS: Final = 5_000  # of one process
UNTOLD_WAIT_S: Final = 1.0  # how long to wait where nothing would tell
_LISTEN_S: Final = 0.5  # between two looks where nothing is told
_RETRY_S: Final = 1.0
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Wait:
    """Somebody who waits for the orders of a run."""

    run_id: UUID
    loop: asyncio.AbstractEventLoop
    rang: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Called from any thread."""
        with suppress(RuntimeError):  # the loop has ended, and the wait with it
            self.loop.call_soon_threadsafe(self.rang.set)


class OrderWaiters:
    """Hears that commands change, in whichever replica, and wakes who waits for them here."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waits: dict[UUID, set[Wait]] = {}
        self._count = 0
        self._lock = Lock()
        self._stopping = Event()
        self._end: socket | None = None
        self._thread: Thread | None = None
        self.connected = False

    def start(self) -> None:
        """Begin to listen."""
        ended, self._end = socketpair()
        self._thread = Thread(
            target=self._run, args=(ended,), name="order-notifications", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, for good."""
        self._stopping.set()
        if self._end is not None:
            self._end.close()  # which ends the thread's wait
        if self._thread is not None:
            self._thread.join(5.0)

    def join(self, run_id: UUID) -> Wait:
        """Wait for `run_id` from now on, until `leave`; raise `Busy` where too many do."""
        wait = Wait(run_id, asyncio.get_running_loop())
        with self._lock:
            if self._count >= MAX_WAITS:
                raise Busy(
                    f"{MAX_WAITS} wait for orders already", "Ask again later", limit=MAX_WAITS
                )
            self._waits.setdefault(run_id, set()).add(wait)
            self._count += 1
        return wait

    def leave(self, wait: Wait) -> None:
        """Wait no longer."""
        with self._lock:
            left = self._waits[wait.run_id]
            left.discard(wait)
            self._count -= 1
            if not left:
                del self._waits[wait.run_id]

    async def changed(self, wait: Wait, within_s: float) -> bool:
        """Whether a command changed within so many seconds."""
        patience = within_s if self.connected else min(within_s, UNTOLD_WAIT_S)
        with suppress(TimeoutError):
            await asyncio.wait_for(wait.rang.wait(), patience)
        return wait.rang.is_set()

    def _run(self, ended: socket) -> None:
        """Listen until the other end of `ended` is closed."""
        while not self._stopping.is_set():
            try:
                self._listen(ended)
            except psycopg.Error as error:
                _log.warning(
                    "notifications of orders are lost, waits are short until they are back: %s",
                    error,
                )
            except Exception:
                _log.exception(
                    "notifications of orders failed, waits are short until they are back"
                )
            self.connected = False
            self._wake(None)
            self._stopping.wait(_RETRY_S)
        ended.close()

    def _listen(self, ended: socket) -> None:
        with listening(self._settings) as connection:
            self.connected = True
            while not self._stopping.is_set():
                self._wake(notified(connection))
                wait_for((connection.fileno(), ended), _LISTEN_S)

    def _wake(self, runs: Collection[UUID] | None) -> None:
        """Wake who waits for `runs`, or everybody."""
        with self._lock:
            called = [
                wait
                for run_id in (list(self._waits) if runs is None else runs)
                for wait in self._waits.get(run_id, ())
            ]
        for wait in called:
            wait.wake()
