"""Sends one conversation: claim it, decide, send, write the delivery log.

Law: no transaction is open while a message travels. A lease keeps other replicas away meanwhile;
who is killed between sending and writing is followed by another who sends again under the same
key: at least once, and the other side knows it for the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import sqlalchemy as sql

from spikeguard_core.notification.channel import Channel
from spikeguard_core.notification.delivery import (
    GIVE_UP_AFTER,
    Act,
    DeliveryVerdict,
    Hush,
    Result,
    backoff_s,
    delivery_verdict,
    stand_in,
)
from spikeguard_core.notification.topics import Topic
from spikeguard_protocol import Kind, ProtocolError, RunId
from spikeguard_server.notify.addresses import read_networks
from spikeguard_server.notify.dispatch import UNREADABLE
from spikeguard_server.notify.facts import message_of, read_facts, said
from spikeguard_server.notify.kinds import Carriage, carry, shows_picture
from spikeguard_server.notify.links import with_link
from spikeguard_server.notify.message import ChannelMessage
from spikeguard_server.notify.picture import picture_of
from spikeguard_server.notify.wire import DeliveryFailed
from spikeguard_server.settings import Settings
from spikeguard_server.store.channels import channels_of, find_channel, silence_over
from spikeguard_server.store.conversations import (
    Conversation,
    Entry,
    Key,
    add_topics,
    claim,
    failing_beside,
    log,
    lost_channels,
    postpone,
    postpone_rest,
    settle,
)
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.notices import read_told

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ready:
    """A message that is to be sent now."""

    held: Conversation
    channel: Channel
    message: ChannelMessage
    carriage: Carriage


@dataclass(frozen=True, slots=True)
class Untold:
    """A message that was not sent: held back, or dropped."""

    kind: str  # of its channel
    result: Result


Count = Callable[[str, Result], None]  # kind of channel, what became of a message to it
Room = AbstractContextManager[Any]  # held while the database is asked, never while one sends
GONE = "gone"  # the kind of a channel that is there no more
UNREADABLE_S = 60.0  # until a newer release beside this one, or after it, had its turn


def uncounted(kind: str, result: Result) -> None:
    """Where nobody counts."""
    del kind, result


def deliver(
    engine: sql.Engine,
    key: Key,
    settings: Settings,
    count: Count = uncounted,
    room: Room = nullcontext(),  # noqa: B008
) -> bool:
    """Tell one conversation, if it is due and free; whether its channel answered, if asked. Where
    it did not, all that is due there waits."""
    with room, engine.begin() as connection:
        held = claim(connection, key)
        ready = None if held is None else _prepare(connection, held, settings)
    if ready is None:
        return True
    if isinstance(ready, Untold):
        count(ready.kind, ready.result)
        return True
    began, kind = monotonic(), ready.channel.kind.value
    failure = attempt(ready.channel, ready.message, ready.carriage)
    took_ms = (monotonic() - began) * 1000.0
    with room, engine.begin() as connection:
        if failure is not None:
            count(kind, _failed(connection, ready, failure, took_ms))
            return not failure.again
        settle(connection, ready.held, sent=True, over=ready.message.over)
        _note(connection, ready.held, Result.SENT, ready.message.title, took_ms)
    count(kind, Result.SENT)
    return True


def attempt(channel: Channel, message: ChannelMessage, by: Carriage) -> DeliveryFailed | None:
    """Send, and say what went wrong if anything did; a fault of ours is worth another try."""
    try:
        carry(channel, message, by)
    except DeliveryFailed as failure:
        return failure
    except Exception as error:
        _log.exception("notifier: channel %s of %s", channel.name, channel.project)
        return DeliveryFailed(f"the server failed at it ({type(error).__name__})", again=True)
    return None


def _prepare(connection: sql.Connection, held: Conversation, settings: Settings) -> Ready | Untold:
    """What to send now; or that it is held or dropped, which is written down."""
    now = database_now(connection)
    try:
        channel = find_channel(connection, held.project, held.key.channel)
    except ProtocolError as error:
        _log.warning("channel %s of %s cannot be read: %s", held.key.channel, held.project, error)
        _hold(connection, held, DeliveryVerdict(Act.HOLD, UNREADABLE, UNREADABLE_S))
        return Untold(GONE, Result.HELD)
    if channel is None:
        _drop(connection, held, "the channel is gone")
        return Untold(GONE, Result.DROPPED)
    facts = read_facts(connection, held, settings, now)
    verdict = delivery_verdict(
        channel, held.pending, facts.subject, said(held, now),
        silence=_silence(connection, held, facts.told.name, now),
        quiet=_quiet(connection, held, facts.subject.kind, now),
    )  # fmt: skip
    if verdict.act is Act.DROP:
        _drop(connection, held, verdict.reason)
        return Untold(channel.kind.value, Result.DROPPED)
    if verdict.act is Act.HOLD:
        _hold(connection, held, verdict)
        return Untold(channel.kind.value, Result.HELD)
    facts = with_link(connection, facts, held, channel, settings)
    message = message_of(facts, held.pending, held.told + 1, held.key.incident)
    if shows_picture(channel) and held.key.incident:
        run = RunId(facts.told.project, facts.told.name)
        row = read_incident(connection, held.key.run_id, run, held.key.incident)
        message = replace(message, picture=picture_of(connection, row))
    networks = read_networks(settings.notify_networks)
    return Ready(held, channel, message, Carriage(networks, held.told > 0, now.timestamp()))


def _silence(
    connection: sql.Connection, held: Conversation, run: str, now: datetime
) -> Hush | None:
    row = silence_over(connection, held.project, run, held.key.incident, now)
    if row is None:
        return None
    left = (row.ends_at - now).total_seconds()
    return Hush(left, f"silenced by {row.created_by} (silence {row.number}): {row.reason}")


def _quiet(
    connection: sql.Connection, held: Conversation, kind: Kind | None, now: datetime
) -> Hush | None:
    quiet = policy_of(connection, held.project, held.key.run_id).quiet
    if quiet is None or not quiet.holds(kind):
        return None
    try:
        here = now.astimezone(ZoneInfo(quiet.timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        _log.warning("quiet hours of %s: no time zone %s here", held.project, quiet.timezone)
        return None
    second = here.hour * 3600 + here.minute * 60 + here.second
    left_s = quiet.left_s(here.weekday(), second)
    words = f"quiet hours until {quiet.end} {quiet.timezone}"
    return None if left_s is None else Hush(left_s, words)


def _drop(connection: sql.Connection, held: Conversation, reason: str) -> None:
    settle(connection, held, sent=False)
    _note(connection, held, Result.DROPPED, reason)


def _hold(connection: sql.Connection, held: Conversation, verdict: DeliveryVerdict) -> None:
    postpone(connection, held, verdict.wait_s, reason=verdict.reason)
    if verdict.reason != held.held_for:
        _note(connection, held, Result.HELD, f"{verdict.reason}: for {verdict.wait_s:.0f} s")


def _failed(
    connection: sql.Connection, ready: Ready, failure: DeliveryFailed, took_ms: float
) -> Result:
    held = ready.held
    failures = held.failures + 1
    if failure.again and failures < GIVE_UP_AFTER:
        beside = failing_beside(connection, held)
        wait_s = backoff_s(failures + beside, failure.after_s)
        # The rest first, so that no look finds this one due and not them.
        postpone_rest(connection, held, wait_s, backoff_s(1 + beside, failure.after_s))
        postpone(connection, held, wait_s, failures=failures)
        words = f"{failure.reason}; try {failures + 1} in {wait_s:.0f} s"
        _note(connection, held, Result.FAILED, words, took_ms)
        return Result.FAILED
    settle(connection, held, sent=False, given_up=True)
    told = _tell_another(connection, held)
    _note(connection, held, Result.GIVEN_UP, f"{failure.reason} (try {failures}){told}", took_ms)
    return Result.GIVEN_UP


def _tell_another(connection: sql.Connection, held: Conversation) -> str:
    """Let another channel of the project say that this one did not get its message."""
    key = held.key
    run = read_told(connection, key.run_id).name
    channels, _ = channels_of(connection, held.project)
    other = stand_in(channels, lost_channels(connection, key.run_id, key.incident), run)
    if other is None:
        return "; no other channel can be told"
    add_topics(connection, key._replace(channel=other.name), held.project, [Topic.UNDELIVERED])
    return f"; {other.name} is told"


def _note(
    connection: sql.Connection,
    held: Conversation,
    result: Result,
    reason: str,
    took_ms: float | None = None,
) -> None:
    key = held.key
    log(
        connection,
        [
            Entry(
                key.run_id, held.project, key.incident, key.channel, held.pending, result, reason,
                took_ms,
            )
        ],
    )  # fmt: skip
