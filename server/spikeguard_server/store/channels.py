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


def remove_channel(connection: sql.Connection, channel: Channel) -> None:
    """Remove the one of this name."""
    mine = (_C.project == channel.project) & (_C.name == channel.name)
    connection.execute(sql.delete(channels).where(mine))


def add_silence(
    connection: sql.Connection, project: str, by: str, *, lasts_s: float, reason: str,
    begins_in_s: float = 0.0, run: str | None = None, incident: int | None = None,
) -> Row:  # fmt: skip
    """Write a silence of a project, of which no other is written meanwhile, or of a `run` of it, or
    of an incident of that."""
    newest = sql.select(sql.func.coalesce(sql.func.max(_S.number), 0) + 1)
    now = sql.func.statement_timestamp()
    begins = now + timedelta(seconds=begins_in_s)
    written = sql.insert(silences).values(
        project=project, number=newest.where(_S.project == project).scalar_subquery(), run=run,
        incident=incident, begins_at=begins, ends_at=begins + timedelta(seconds=lasts_s),
        reason=reason, created_at=now, created_by=by,
    )  # fmt: skip
    return connection.execute(written.returning(silences)).one()


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
