"""The test button of a channel: a message now, and what became of it.

No transaction is open while the message travels, and a few travel at once: a channel that hangs
keeps no other call from being answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import BoundedSemaphore
from time import monotonic
from typing import Final

import sqlalchemy as sql

from spikeguard_core.notification.delivery import Result
from spikeguard_server.errors import Busy
from spikeguard_server.notify.addresses import read_networks
from spikeguard_server.notify.facts import test_message
from spikeguard_server.notify.kinds import Carriage
from spikeguard_server.notify.telling import attempt
from spikeguard_server.settings import Settings
from spikeguard_server.store.audit import append
from spikeguard_server.store.conversations import Entry, channel_works, log
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.reads.notices import read_channel
from spikeguard_server.store.tables.core import FLEET

AT_ONCE: Final = 4  # tests that travel, of one process; each holds a thread that answers calls
_room = BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True, slots=True)
class ChannelTested:
    """What became of a test."""

    result: Result
    reason: str
    took_ms: float


def press(
    engine: sql.Engine, settings: Settings, project: str, name: str, person: str
) -> ChannelTested:
    """Send a test to a channel in a person's name and say what became of it; raise `NotFound`, or
    `Busy` where `AT_ONCE` are on their way."""
    if not _room.acquire(blocking=False):
        raise Busy(
            f"{AT_ONCE} tests are on their way", "Wait for what becomes of them", limit=AT_ONCE
        )
    try:
        return _send(engine, settings, project, name, person)
    finally:
        _room.release()


def _send(
    engine: sql.Engine, settings: Settings, project: str, name: str, person: str
) -> ChannelTested:
    with engine.begin() as connection:
        channel, _ = read_channel(connection, project, name)
        now = database_now(connection)
        append(
            connection, FLEET, actor=person, action="channel.tested",
            subject=f"channel {name} of {project}",
        )  # fmt: skip
    message, began = test_message(project, now, person), monotonic()
    carriage = Carriage(read_networks(settings.notify_networks), False, now.timestamp())
    failure = attempt(channel, message, carriage)
    took_ms = (monotonic() - began) * 1000.0
    result = Result.SENT if failure is None else Result.GIVEN_UP
    reason = message.title if failure is None else failure.reason
    with engine.begin() as connection:
        log(
            connection, [Entry(FLEET, project, None, name, message.topics, result, reason, took_ms)]
        )
        if failure is None:
            channel_works(connection, project, name)
    return ChannelTested(result, reason, took_ms)
