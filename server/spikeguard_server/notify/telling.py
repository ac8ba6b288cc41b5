"""Sends one conversation: claim it, decide, send, write the delivery log.

No transaction is open while a message travels. A lease keeps other replicas away meanwhile; who is
killed between sending and writing is followed by another who sends again under the same key: at
least once, and the other side knows it for the same.
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
    DeliveryVerdict,
    Result,
    Subject,
    backoff_s,
    delivery_verdict,
    stand_in,
    uninterested,
)
from spikeguard_core.notification.topics import LAST, Topic
from spikeguard_protocol import Kind
from spikeguard_server.notify.facts import approval_link, read_message, test_message
from spikeguard_server.notify.kinds import carry, shows_picture
from spikeguard_server.notify.message import ChannelMessage
from spikeguard_server.notify.picture import picture_of
from spikeguard_server.notify.wire import DeliveryFailed
from spikeguard_server.settings import Settings, networks_of
from spikeguard_server.store.audit import append
from spikeguard_server.store.channels import channels_of, read_channel, silence_over
from spikeguard_server.store.conversations import (
    Conversation,
    Key,
    channel_works,
    claim,
    log,
    lost_channels,
    postpone,
    settle,
    tell,
)
from spikeguard_server.store.engine import database_now, write
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.runs import read_told
from spikeguard_server.store.runs import keep_run
from spikeguard_server.store.tables.core import FLEET

_log = logging.getLogger(__name__)


Ready = tuple[Conversation, Channel, ChannelMessage]  # what is to be sent now


@dataclass(frozen=True, slots=True)
class ChannelTested:
    """What became of a test."""

    result: Result
    reason: str
    took_ms: float


Count = Callable[[str, Result], None]  # kind of channel, what became of a message to it
Room = AbstractContextManager[Any]  # held while the database is asked, never while one sends
NO_CHANNEL = "the project has no channel"
GONE = "gone"  # the kind of a channel that is there no more


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
    """Tell one conversation, if it is due and free; whether its channel answered, if asked."""
    with room:
        with engine.begin() as connection:  # whoever adds to it waits no longer than that
            held = claim(connection, key)
        with engine.begin() as connection:
            there = held is not None and keep_run(connection, key.run_id)
            ready = _prepare(connection, held, settings, count) if held and there else None
    if ready is None:
        return True
    held, channel, message = ready
    failure, took_ms = attempt(channel, message, settings)
    with room, engine.begin() as connection:
        there = keep_run(connection, key.run_id)  # not if it was deleted meanwhile
        result = Result.SENT if failure is None else Result.GIVEN_UP
        if there and failure is not None:
            result = _failed(connection, held, failure, took_ms)
        elif there:
            settle(connection, held, sent=True, over=message.over)
            _note(connection, held, result, message.title, took_ms)
    count(channel.kind.value, result)
    return failure is None or not failure.again


def attempt(
    channel: Channel, message: ChannelMessage, settings: Settings
) -> tuple[DeliveryFailed | None, float]:
    """Send; what went wrong if anything did (a fault of ours is worth another try), and how many
    milliseconds it took."""
    began, failure = monotonic(), None
    try:
        carry(channel, message, networks_of(settings.notify_networks))
    except DeliveryFailed as error:
        failure = error
    except Exception as error:
        _log.exception("notifier: channel %s of %s", channel.name, channel.project)
        failure = DeliveryFailed(f"the server failed at it ({type(error).__name__})", again=True)
    return failure, (monotonic() - began) * 1000.0


def send_test(
    engine: sql.Engine, settings: Settings, project: str, name: str, person: str
) -> ChannelTested:
    """Send a test to a channel in a person's name and say what became of it; raise `NotFound`. No
    transaction is open while it travels."""
    with engine.begin() as connection:
        channel, _ = read_channel(connection, project, name)
        message = test_message(project, database_now(connection), person)
        append(
            connection, FLEET, actor=person, action="channel.tested",
            subject=f"channel {name} of {project}",
        )  # fmt: skip
    failure, took_ms = attempt(channel, message, settings)
    result = Result.SENT if failure is None else Result.GIVEN_UP
    reason = message.title if failure is None else failure.reason
    with engine.begin() as connection:
        key = Key(FLEET, 0, name)
        log(connection, key, project, message.topics, result, reason, took_ms)
        if failure is None:
            channel_works(connection, project, name)
    return ChannelTested(result, reason, took_ms)


def _prepare(
    connection: sql.Connection, held: Conversation, settings: Settings, count: Count
) -> Ready | None:
    """What to send now; None where it is held or dropped, which is written down."""
    kind, held, found = _judged(connection, held, settings)
    if isinstance(found, tuple):
        return found
    if found.act is Result.DROPPED:
        settle(connection, held, sent=False, over=bool(held.pending & LAST))
        _note(connection, held, Result.DROPPED, found.reason)
    else:
        postpone(connection, held, found.wait_s, reason=found.reason)
        if found.reason != held.held_for:
            _note(connection, held, Result.HELD, f"{found.reason}: for {found.wait_s:.0f} s")
    count(kind, found.act)
    return None


def _judged(
    connection: sql.Connection, held: Conversation, settings: Settings
) -> tuple[str, Conversation, Ready | DeliveryVerdict]:
    """The channel's kind, `held` with what it asks for, and what to send now or why not."""
    now = database_now(connection)
    there = channels_of(connection, held.project, held.key.channel)
    if not there:
        gone = "the channel is gone" if held.key.channel else NO_CHANNEL
        return GONE, held, DeliveryVerdict(Result.DROPPED, gone)
    channel, _ = there[0]
    kind = channel.kind.value
    told = read_told(connection, held.key.run_id)
    why_not = {
        topic: uninterested(channel, topic, told.name, begun=held.told > 0)
        for topic in sorted(held.pending)
    }
    wanted = frozenset(topic for topic, reason in why_not.items() if reason is None)
    if not wanted:
        reason = next(filter(None, why_not.values()), "")
        return kind, held, DeliveryVerdict(Result.DROPPED, reason)
    held = replace(held, pending=wanted)
    message = read_message(connection, held, told, settings, now)
    spike, subject = message.spike, Subject(None, None, 0, history=False)
    if spike is not None:
        subject = Subject(
            spike.incident.kind, spike.incident.outcome, spike.escalations, history=told.history,
            acknowledged_by=None if spike.closed else spike.row.acknowledged_by,
        )  # fmt: skip
    ago = None if held.told_at is None else max(0.0, (now - held.told_at).total_seconds())
    verdict = delivery_verdict(
        channel, held.pending, subject, ago,
        silence=_silence(connection, held, told.name, now),
        quiet=_quiet(connection, held, subject.kind, now),
    )  # fmt: skip
    if verdict.act is not Result.SENT:
        return kind, held, verdict
    links = {**approval_link(connection, message, channel, settings), **message.links}
    message = replace(message, links=links)
    if spike is not None and shows_picture(channel):
        message = replace(message, picture=picture_of(connection, spike.row))
    return kind, held, (held, channel, message)


def _silence(
    connection: sql.Connection, held: Conversation, run: str, now: datetime
) -> DeliveryVerdict | None:
    row = silence_over(connection, held.project, run, held.key.incident, now)
    if row is None:
        return None
    left = (row.ends_at - now).total_seconds()
    words = f"silenced by {row.created_by} (silence {row.number}): {row.reason}"
    return DeliveryVerdict(Result.HELD, words, left)


def _quiet(
    connection: sql.Connection, held: Conversation, kind: Kind | None, now: datetime
) -> DeliveryVerdict | None:
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
    return None if left_s is None else DeliveryVerdict(Result.HELD, words, left_s)


def _failed(
    connection: sql.Connection, held: Conversation, failure: DeliveryFailed, took_ms: float
) -> Result:
    failures = held.failures + 1
    if failure.again and failures < GIVE_UP_AFTER:
        wait_s = backoff_s(failures, failure.after_s)
        postpone(connection, held, wait_s, failures=failures)
        words = f"{failure.reason}; try {failures + 1} in {wait_s:.0f} s"
        _note(connection, held, Result.FAILED, words, took_ms)
        return Result.FAILED
    ours = settle(connection, held, sent=False, over=bool(held.pending & LAST), given_up=True)
    told = _tell_another(connection, held) if ours else "; another sender tries it"
    _note(connection, held, Result.GIVEN_UP, f"{failure.reason} (try {failures}){told}", took_ms)
    return Result.GIVEN_UP


def _tell_another(connection: sql.Connection, held: Conversation) -> str:
    """Let another channel of the project say that this one did not get its message."""
    key = held.key
    run = read_told(connection, key.run_id).name
    channels = [channel for channel, _ in channels_of(connection, held.project)]
    other = stand_in(channels, lost_channels(connection, key.run_id, key.incident), run)
    if other is None:
        return "; no other channel can be told"
    write(connection, tell(key.run_id, key.incident, Topic.UNDELIVERED, other.name))
    return f"; {other.name} is told"


def _note(
    connection: sql.Connection,
    held: Conversation,
    result: Result,
    reason: str,
    took_ms: float | None = None,
) -> None:
    log(connection, held.key, held.project, held.pending, result, reason, took_ms)
