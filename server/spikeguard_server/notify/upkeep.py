"""Channels and silences as people change them, each with its entry in the audit; the test button.

Law: the caller owns the transaction, but for the test, which holds none while its message travels.
No secret enters the audit: of a target it says what may be shown, or that it changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import sqlalchemy as sql

from spikeguard_server.domain.changes import Change, channel_changes
from spikeguard_server.domain.channel import Channel, channel_from_mapping
from spikeguard_server.domain.telling import NewSilence, Result
from spikeguard_server.domain.topics import Topic
from spikeguard_server.errors import Busy, NotFound
from spikeguard_server.notify.addresses import read_networks
from spikeguard_server.notify.facts import test_message
from spikeguard_server.notify.kinds import Carriage
from spikeguard_server.notify.telling import attempt
from spikeguard_server.repository.audit import append
from spikeguard_server.repository.channels import (
    add_silence,
    end_silence,
    find_channel,
    lock_channels,
    remove_channel,
    write_channel,
)
from spikeguard_server.repository.conversations import Entry, log, wake
from spikeguard_server.repository.engine import database_now
from spikeguard_server.repository.reading_notices import last_test_s_ago, read_channel
from spikeguard_server.settings import Settings
from spikeguard_server.tables import FLEET

TEST_EVERY_S = 5.0


def put_channel(
    connection: sql.Connection, project: str, name: str, plain: Mapping[str, Any], by: str,
    reason: str | None = None,
) -> Channel:  # fmt: skip
    """Write a channel; one without `target` keeps the target that it has. Raise `ChannelError`."""
    lock_channels(connection, project)
    known = find_channel(connection, project, name)
    kept = plain if known is None else {"target": known.target, **plain}
    channel = channel_from_mapping(project, name, kept)
    write_channel(connection, channel, by)
    action = "channel.created" if known is None else "channel.changed"
    _record(connection, by, action, project, name, reason, channel_changes(known, channel))
    wake(connection, project)
    return channel


def drop_channel(
    connection: sql.Connection, project: str, name: str, by: str, reason: str | None = None
) -> None:
    """Tell nothing there any more; raise `NotFound` if there is no such channel."""
    gone = remove_channel(connection, project, name)
    if gone is None:
        raise NotFound(
            f"Project {project} has no channel {name}", "GET /v1/channels lists those there are"
        )
    _record(connection, by, "channel.removed", project, name, reason, channel_changes(gone, None))


def silence(connection: sql.Connection, wanted: NewSilence, by: str) -> int:
    """Put a silence over something; its number."""
    number = add_silence(connection, wanted, by)
    over = f"{wanted.project}/{wanted.run or '*'}#{wanted.incident or '*'}"
    append(
        connection, FLEET, actor=by, action="silence.created",
        subject=f"silence {number} of {over}",
        after=f"in {wanted.begins_in_s:.0f} s, for {wanted.lasts_s:.0f} s", reason=wanted.reason,
    )  # fmt: skip
    return number


def speak_again(
    connection: sql.Connection, project: str, number: int, by: str, reason: str | None = None
) -> None:
    """Take a silence back; what it held is told. Raise `NotFound` if there is none in force."""
    if not end_silence(connection, project, number, by):
        raise NotFound(
            f"Project {project} has no silence {number} that has not ended",
            "GET /v1/silences lists those in force",
        )
    append(
        connection, FLEET, actor=by, action="silence.ended",
        subject=f"silence {number} of {project}", reason=reason,
    )  # fmt: skip
    wake(connection, project)


def press_test(
    engine: sql.Engine, settings: Settings, project: str, name: str, person: str
) -> Entry:
    """Send a test to a channel and say what became of it; raise `NotFound` or `Busy`."""
    with engine.begin() as connection:
        channel, _ = read_channel(connection, project, name)
        ago, number = last_test_s_ago(connection, project, name)
        if ago is not None and ago < TEST_EVERY_S:
            raise Busy(
                f"{name} was tested {ago:.1f} s ago",
                "Wait a little",
                retry_after_s=int(TEST_EVERY_S),
            )
        now = database_now(connection)
        message = test_message(project, now, person, number + 1)
        _record(connection, person, "channel.tested", project, name)
    began = monotonic()
    networks = read_networks(settings.notify_networks)
    failure = attempt(channel, message, Carriage(networks, False, now.timestamp()))
    took_ms = (monotonic() - began) * 1000.0
    result = Result.SENT if failure is None else Result.GIVEN_UP
    reason = message.title if failure is None else failure.reason
    entry = Entry(FLEET, project, None, name, frozenset({Topic.TEST}), result, reason, took_ms)
    with engine.begin() as connection:
        log(connection, [entry])
    return entry


def _record(
    connection: sql.Connection, by: str, action: str, project: str, name: str,
    reason: str | None = None, changes: Sequence[Change] = (),
) -> None:  # fmt: skip
    append(
        connection, FLEET, actor=by, action=action, subject=f"channel {name} of {project}",
        reason=reason, changes=changes,
    )  # fmt: skip
