"""Channels and silences as people change them, each with its entry in the audit.

The caller owns the transaction. No secret enters the audit: of a target it says what may be shown,
or that it changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sql

from spikeguard_core.diagnosis.change_effect import Changed, changes_between
from spikeguard_core.notification.channel import Channel, checked_target
from spikeguard_protocol import IncidentId
from spikeguard_server.access.person_names import read_person
from spikeguard_server.errors import NotFound
from spikeguard_server.store.audit import append
from spikeguard_server.store.channels import (
    add_silence,
    channels_of,
    end_silence,
    read_channel,
    remove_channel,
    silence_over,
    write_channel,
)
from spikeguard_server.store.conversations import channel_works, wake
from spikeguard_server.store.engine import database_now, lock
from spikeguard_server.store.paging import Row
from spikeguard_server.store.runs import lock_run
from spikeguard_server.store.tables.core import FLEET, run_key


def put_channel(
    connection: sql.Connection, wanted: Channel, by: str, reason: str | None = None
) -> None:
    """Write a channel; one without `target` keeps the target that it has. Raise `SettingError`."""
    project, name = wanted.project, wanted.name
    lock(connection, f"channels/{project}")
    known = next((there for there, _ in channels_of(connection, project, name)), None)
    target = wanted.target or ({} if known is None else known.target)
    person = None if wanted.person is None else read_person(wanted.person, "person")
    channel = replace(wanted, target=checked_target(wanted.kind, target), person=person)
    write_channel(connection, channel, by)
    action = "channel.created" if known is None else "channel.changed"
    subject, changes = f"channel {name} of {project}", _changes(known, channel)
    _record(connection, by, action, subject, reason, changes=changes)
    wake(connection, project)


def drop_channel(
    connection: sql.Connection, project: str, name: str, by: str, reason: str | None = None
) -> None:
    """Tell nothing there any more; raise `NotFound` if there is no such channel."""
    lock(connection, f"channels/{project}")
    gone, _ = read_channel(connection, project, name)
    remove_channel(connection, gone)
    channel_works(connection, project, name)
    subject, changes = f"channel {name} of {project}", _changes(gone, None)
    _record(connection, by, "channel.removed", subject, reason, changes=changes)


def silence(
    connection: sql.Connection, project: str, by: str, *, lasts_s: float, begins_in_s: float = 0.0,
    **wanted: Any,
) -> Row:  # fmt: skip
    """Put a silence over something: `wanted` as `add_silence` takes it."""
    lock(connection, f"silences/{project}")
    row = add_silence(connection, project, by, lasts_s=lasts_s, begins_in_s=begins_in_s, **wanted)
    subject = f"silence {row.number} of {project}/{row.run or '*'}#{row.incident or '*'}"
    lasts = f"in {begins_in_s:.0f} s, for {lasts_s:.0f} s"
    _record(connection, by, "silence.created", subject, row.reason, after=lasts)
    return row


def silence_once(
    connection: sql.Connection, incident: IncidentId, lasts_s: float, reason: str, by: str
) -> None:
    """Put a silence over an incident, unless there is one: of several at once the first does."""
    lock_run(connection, run_key(incident.run))
    if silent_for_s(connection, incident) is None:
        run = incident.run
        silence(
            connection, run.project, by, run=run.name, incident=incident.number, lasts_s=lasts_s,
            reason=reason,
        )  # fmt: skip


def silent_for_s(connection: sql.Connection, incident: IncidentId) -> float | None:
    """For how long nobody is told of it any more; None where it is not silenced."""
    now, run = database_now(connection), incident.run
    row = silence_over(connection, run.project, run.name, incident.number, now)
    return None if row is None else float((row.ends_at - now).total_seconds())


def speak_again(
    connection: sql.Connection, project: str, number: int, by: str, reason: str | None = None
) -> None:
    """Take a silence back; what it held is told. Raise `NotFound` if there is none in force."""
    if not end_silence(connection, project, number):
        raise NotFound(
            f"Project {project} has no silence {number} that has not ended",
            "GET /v1/silences lists those in force",
        )
    _record(connection, by, "silence.ended", f"silence {number} of {project}", reason)
    wake(connection, project)


def _changes(before: Channel | None, after: Channel | None) -> list[Changed]:
    """What changed of a channel, its target by what may be shown of that; None: it was not there,
    or is gone."""
    old, new = (
        {} if one is None else {"kind": one.kind.value, "target": one.target, **one.rules()}
        for one in (before, after)
    )
    shown, shows = ({} if one is None else one.shown_target() for one in (before, after))
    return [
        replace(one, before=shown.get(name), after=shows.get(name))
        if (name := one.field.removeprefix("target.")) != one.field
        else one
        for one in changes_between(old, new)
    ]


def _record(
    connection: sql.Connection, by: str, action: str, subject: str, reason: str | None, **more: Any
) -> None:
    append(connection, FLEET, actor=by, action=action, subject=subject, reason=reason, **more)
