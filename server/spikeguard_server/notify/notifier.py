"""The notifier's threads: one finds due conversations, a few send them.

Any number of replicas may look at once. A channel that does not answer holds up its own
conversations and no other's, and never a message, a decision or the ticker; those of one project
take up a part of the carriers at most. What cannot be read of one run or conversation holds up no
other. A server that is told to stop does not wait for a channel: what travels then is told again by
whoever comes next.

A conversation is claimed, judged and sent, and the delivery log written. No transaction is open
while a message travels. A lease keeps other replicas away meanwhile; who is killed between sending
and writing is followed by another who sends again under the same key: at least once, and the other
side knows it for the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from threading import BoundedSemaphore, Event, Thread
from time import monotonic
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

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
from spikeguard_server.notify.facts import approval_link, picture_of, read_message, test_message
from spikeguard_server.notify.kinds import carry, shows_picture
from spikeguard_server.notify.message import ChannelMessage
from spikeguard_server.notify.wire import DeliveryFailed
from spikeguard_server.retries import survive
from spikeguard_server.settings import Settings, networks_of
from spikeguard_server.store.audit import append
from spikeguard_server.store.channels import channels_of, read_channel, silence_over
from spikeguard_server.store.conversations import (
    Conversation,
    Key,
    channel_works,
    claim,
    due_conversations,
    log,
    lost_channels,
    postpone,
    put_off,
    settle,
    tell,
)
from spikeguard_server.store.engine import database_now, write
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.runs import read_told
from spikeguard_server.store.runs import keep_run
from spikeguard_server.store.tables.core import FLEET

CHANNELS = 12  # that are told at once
OF_A_PROJECT = 8  # of them
AT_ONCE = 2  # connections that carriers hold at once, while the database is asked
PUT_OFF_S = 60.0  # what cannot be told as it stands
STOP_TIMEOUT_S = 3.0
Count = Callable[[str, Result], None]  # kind of channel, what became of a message to it
Place = tuple[str, str]  # project, channel
Ready = tuple[Conversation, Channel, ChannelMessage]  # what is to be sent now
_log = logging.getLogger(__name__)


class Notifier:
    """Tells until it is stopped."""

    def __init__(self, settings: Settings, engine: sql.Engine, count: Count) -> None:
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
        with self._engine.begin() as connection:
            for project, key in due_conversations(connection):
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
            return self.deliver(key)
        except SQLAlchemyError:
            _log.exception("notifier: channel %s of %s waits for the database", *place[::-1])
            return False
        except Exception:
            _log.exception("notifier: a message to channel %s of %s is put off", *place[::-1])
            with suppress(SQLAlchemyError), self._connections, self._engine.begin() as connection:
                put_off(connection, key, PUT_OFF_S)
            return True

    def deliver(self, key: Key) -> bool:
        """Tell one conversation, if it is due and free; whether its channel answered, if asked."""
        with self._connections:
            with self._engine.begin() as connection:  # whoever adds to it waits no longer than that
                held = claim(connection, key)
            if held is None:
                return True
            with self._engine.begin() as connection:
                there = keep_run(connection, key.run_id)
                ready = self._prepare(connection, held) if there else None
        if ready is None:
            return True
        held, channel, message = ready
        failure, took_ms = attempt(channel, message, self._settings)
        with self._connections, self._engine.begin() as connection:
            there = keep_run(connection, key.run_id)  # not if it was deleted meanwhile
            result = Result.SENT if failure is None else Result.GIVEN_UP
            if there and failure is not None:
                result = _failed(connection, held, failure, took_ms)
            elif there:
                settle(connection, held, sent=True, over=message.over)
                _note(connection, held, result, message.title, took_ms)
        self._count(channel.kind, result)
        return failure is None or not failure.again

    def _prepare(self, connection: sql.Connection, held: Conversation) -> Ready | None:
        """What to send now; None where it is held or dropped, which is written down."""
        now, key = database_now(connection), held.key
        found = channels_of(connection, held.project, key.channel)
        if not found:
            reason = "the channel is gone" if key.channel else "the project has no channel"
            self._leave(connection, held, "gone", DeliveryVerdict(Result.DROPPED, reason))
            return None
        channel, _ = found[0]
        told = read_told(connection, key.run_id)
        why_not = {
            topic: uninterested(channel, topic, told.name, begun=held.told > 0)
            for topic in sorted(held.pending)
        }
        wanted = frozenset(topic for topic, reason in why_not.items() if reason is None)
        if not wanted:
            reason = next(filter(None, why_not.values()), "")
            self._leave(connection, held, channel.kind, DeliveryVerdict(Result.DROPPED, reason))
            return None
        held = replace(held, pending=wanted)
        message = read_message(connection, held, told, self._settings, now)
        verdict = _judge(connection, held, channel, message)
        if verdict.act is not Result.SENT:
            self._leave(connection, held, channel.kind, verdict)
            return None
        links = {**approval_link(connection, message, channel, self._settings), **message.links}
        message = replace(message, links=links)
        if message.spike is not None and shows_picture(channel):
            message = replace(message, picture=picture_of(connection, message.spike.row))
        return held, channel, message

    def _leave(
        self, connection: sql.Connection, held: Conversation, kind: str, why: DeliveryVerdict
    ) -> None:
        """Write down that it is dropped or held, and why; `kind` is its channel's, or `gone`."""
        if why.act is Result.DROPPED:
            settle(connection, held, sent=False, over=bool(held.pending & LAST))
            _note(connection, held, Result.DROPPED, why.reason)
        else:
            postpone(connection, held, why.wait_s, reason=why.reason)
            if why.reason != held.held_for:
                _note(connection, held, Result.HELD, f"{why.reason}: for {why.wait_s:.0f} s")
        self._count(kind, why.act)


@dataclass(frozen=True, slots=True)
class ChannelTested:
    """What became of a test."""

    result: Result
    reason: str
    took_ms: float


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


def _judge(
    connection: sql.Connection, held: Conversation, channel: Channel, message: ChannelMessage
) -> DeliveryVerdict:
    """Whether to send it now."""
    spike, told, subject = message.spike, message.told, Subject(None, None, 0, history=False)
    if spike is not None:
        subject = Subject(
            spike.incident.kind, spike.incident.outcome, spike.escalations, history=told.history,
            acknowledged_by=None if spike.closed else spike.row.acknowledged_by,
        )  # fmt: skip
    now = message.at
    ago = None if held.told_at is None else max(0.0, (now - held.told_at).total_seconds())
    return delivery_verdict(
        channel, held.pending, subject, ago,
        silence=_silence(connection, held, told.name, now),
        quiet=_quiet(connection, held, subject.kind, now),
    )  # fmt: skip


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
