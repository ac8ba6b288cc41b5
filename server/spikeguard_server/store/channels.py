"""Channels and silences, between rows and the domain's values; written by whoever may.

A channel's target is for senders alone: nothing shows it as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.notification.channel import Channel
from spikeguard_core.notification.delivery import NewSilence
from spikeguard_server.errors import NotFound
from spikeguard_server.store.paging import Row
from spikeguard_server.store.tables.core import channels, silences

_C, _S = channels.c, silences.c


def _channel_of(row: Any) -> Channel:
    plain = {name: getattr(row, name) for name in ("project", "name", "kind", "target")}
    return msgspec.convert({**plain, **row.rules}, Channel)


def channels_of(
    connection: sql.Connection, project: str, name: str | None = None
) -> list[tuple[Channel, Row]]:
    """The channels of a project with their targets, by name, or the one of that name; each with its
    row."""
    query = sql.select(channels).where(_C.project == project).order_by(_C.name)
    if name is not None:
        query = query.where(_C.name == name)
    return [(_channel_of(row), row) for row in connection.execute(query)]


def read_channel(connection: sql.Connection, project: str, name: str) -> tuple[Channel, Row]:
    """One channel; raise `NotFound` if there is none."""
    for found in channels_of(connection, project, name):
        return found
    raise NotFound(
        f"Project {project} has no channel {name}", "`spikeguard channels list` lists them"
    )


def write_channel(connection: sql.Connection, channel: Channel, by: str) -> None:
    """Write a channel, new or in the place of the one of its name."""
    values = {
        "kind": channel.kind.value,
        "target": dict(channel.target),
        "rules": channel.rules(),
        "changed_at": sql.func.clock_timestamp(),
        "changed_by": by,
    }
    connection.execute(
        insert(channels)
        .values(project=channel.project, name=channel.name, **values)
        .on_conflict_do_update(index_elements=["project", "name"], set_=values)
    )


def remove_channel(connection: sql.Connection, project: str, name: str) -> None:
    connection.execute(sql.delete(channels).where(_C.project == project, _C.name == name))


def add_silence(connection: sql.Connection, wanted: NewSilence, by: str) -> int:
    """Write a silence; its number within the project, of which no other is written meanwhile."""
    newest = sql.select(sql.func.coalesce(sql.func.max(_S.number), 0)).where(
        _S.project == wanted.project
    )
    number: int = connection.execute(newest).scalar_one() + 1
    now = sql.func.clock_timestamp()
    begins = now + timedelta(seconds=wanted.begins_in_s)
    connection.execute(
        sql.insert(silences).values(
            project=wanted.project, number=number, run=wanted.run, incident=wanted.incident,
            begins_at=begins, ends_at=begins + timedelta(seconds=wanted.lasts_s),
            reason=wanted.reason, created_at=now, created_by=by,
        )
    )  # fmt: skip
    return number


def end_silence(connection: sql.Connection, project: str, number: int) -> bool:
    """Take a silence back; whether there was one that had not ended."""
    now = sql.func.clock_timestamp()
    changed = connection.execute(
        sql.update(silences)
        .where(_S.project == project, _S.number == number, _S.ends_at > now)
        .values(ends_at=now, begins_at=sql.func.least(_S.begins_at, now))
    )
    return bool(changed.rowcount)


def silence_over(
    connection: sql.Connection, project: str, run: str, incident: int, now: datetime
) -> Any:
    """The silence that lasts longest over an incident at `now`; None if there is none."""
    query = (
        sql.select(silences)
        .where(_S.project == project, _S.begins_at <= now, _S.ends_at > now)
        .where(_S.run.is_(None) | (_S.run == run))
        .where(_S.incident.is_(None) | (_S.incident == incident))
        .order_by(_S.ends_at.desc())
        .limit(1)
    )
    return connection.execute(query).one_or_none()


def read_silences(connection: sql.Connection, project: str, limit: int = 200) -> Sequence[Row]:
    """Silences that last or are to come, the first to end first."""
    query = sql.select(silences).where(_S.project == project, _S.ends_at > sql.func.now())
    return connection.execute(query.order_by(_S.ends_at, _S.number).limit(limit)).all()


def read_silence(connection: sql.Connection, project: str, number: int) -> Row:
    """One silence; raise `NotFound` if there is none."""
    query = sql.select(silences).where(_S.project == project, _S.number == number)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(
            f"Project {project} has no silence {number}", "GET /v1/silences lists those in force"
        )
    return row
