"""The test button of a channel: a message now, and what became of it.

Law: a press is claimed before anything is sent, so that of many at once one is carried. Carried by
a thread of its own, few at a time: a channel that hangs keeps no other call from being answered. No
transaction is open meanwhile.
"""

from __future__ import annotations

from asyncio import wrap_future
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import BoundedSemaphore, Thread
from time import monotonic
from typing import Final

import sqlalchemy as sql

from spikeguard_core.notification.channel import Channel
from spikeguard_core.notification.delivery import Result
from spikeguard_server.errors import Busy
from spikeguard_server.notify.addresses import read_networks
from spikeguard_server.notify.facts import test_message
from spikeguard_server.notify.kinds import Carriage
from spikeguard_server.notify.message import ChannelMessage
from spikeguard_server.notify.telling import attempt
from spikeguard_server.settings import Settings
from spikeguard_server.store.audit import append
from spikeguard_server.store.clock import database_now
from spikeguard_server.store.conversations import channel_works
from spikeguard_server.store.reads.notices import read_channel
from spikeguard_server.store.tables.core import FLEET
from spikeguard_server.store.test_messages import begin_press, end_press, lock_presses

EVERY_S: Final = 5.0
AT_ONCE: Final = 4  # tests that travel, of one process
AT_DESK: Final = 1  # connections that they hold at once


@dataclass(frozen=True, slots=True)
class ChannelTested:
    """What became of a test."""

    result: Result
    reason: str
    took_ms: float


@dataclass(frozen=True, slots=True)
class _Claimed:
    number: int
    channel: Channel
    message: ChannelMessage
    carriage: Carriage


class Button:
    """Carries the tests of this process."""

    def __init__(self, settings: Settings, engine: sql.Engine) -> None:
        self._settings, self._engine = settings, engine
        self._room, self._desk = BoundedSemaphore(AT_ONCE), BoundedSemaphore(AT_DESK)

    async def press(self, project: str, name: str, person: str) -> ChannelTested:
        """Send a test to a channel in a person's name; raise `NotFound` or `Busy`."""
        if not self._room.acquire(blocking=False):
            raise Busy(
                f"{AT_ONCE} tests are on their way", "Wait for what becomes of them", limit=AT_ONCE
            )
        done: Future[ChannelTested] = Future()
        done.set_running_or_notify_cancel()  # it is carried to its end, also if nobody waits
        given = (done, project, name, person)
        try:
            Thread(target=self._carry, args=given, name="test of a channel", daemon=True).start()
        except BaseException:
            self._room.release()
            raise
        return await wrap_future(done)

    def _carry(self, done: Future[ChannelTested], project: str, name: str, person: str) -> None:
        try:
            tested = press(self._engine, self._settings, self._desk, project, name, person)
        except BaseException as error:
            self._room.release()
            done.set_exception(error)
        else:
            self._room.release()
            done.set_result(tested)


def press(
    engine: sql.Engine,
    settings: Settings,
    desk: AbstractContextManager[object],
    project: str,
    name: str,
    person: str,
) -> ChannelTested:
    """Send a test to a channel and say what became of it; raise `NotFound` or `Busy`. A connection
    is held within `desk` alone."""
    with desk, engine.begin() as connection:
        claimed = _claim(connection, settings, project, name, person)
    began = monotonic()
    failure = attempt(claimed.channel, claimed.message, claimed.carriage)
    took_ms = (monotonic() - began) * 1000.0
    result = Result.SENT if failure is None else Result.GIVEN_UP
    reason = claimed.message.title if failure is None else failure.reason
    with desk, engine.begin() as connection:
        end_press(connection, claimed.number, result, reason, took_ms)
        if failure is None:
            channel_works(connection, project, name)
    return ChannelTested(result, reason, took_ms)


def _claim(
    connection: sql.Connection, settings: Settings, project: str, name: str, person: str
) -> _Claimed:
    channel, _ = read_channel(connection, project, name)
    before = lock_presses(connection, project, name)
    if before.under_way:
        raise _too_soon(f"A test of {name} is on its way")
    if before.s_ago is not None and before.s_ago < EVERY_S:
        raise _too_soon(f"{name} was tested {before.s_ago:.1f} s ago")
    now = database_now(connection)
    append(
        connection, FLEET, actor=person, action="channel.tested",
        subject=f"channel {name} of {project}",
    )  # fmt: skip
    return _Claimed(
        begin_press(connection, project, name), channel,
        test_message(project, now, person, before.times + 1),
        Carriage(read_networks(settings.notify_networks), False, now.timestamp()),
    )  # fmt: skip


def _too_soon(told: str) -> Busy:
    return Busy(told, "Wait a little", retry_after_s=int(EVERY_S))
