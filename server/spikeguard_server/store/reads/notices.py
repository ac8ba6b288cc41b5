"""Channels, silences and the delivery log as the API shows them, and what a message needs to know.

A channel's target never leaves here as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.notification.channel import Channel
from spikeguard_server.errors import NotFound
from spikeguard_server.store.channels import channels_of
from spikeguard_server.store.commands import RUN_WAITS
from spikeguard_server.store.engine import seconds
from spikeguard_server.store.paging import PageWanted, Row, read_page
from spikeguard_server.store.reads.runs import job_of
from spikeguard_server.store.tables.core import (
    attempts,
    commands,
    deliveries,
    runs,
    silences,
)

_S, _D = silences.c, deliveries.c
HISTORY_AFTER_S: Final = 600.0  # samples that are older propose nothing and page nobody


@dataclass(frozen=True, slots=True)
class NotifiedRun:
    """The run that a message is about."""

    project: str
    name: str
    state: str
    history: bool  # what it sends is older than what may page anybody
    job: str | None  # what to look at where its job may have died
    age_s: float  # of its newest message
    last_step: int | None
    last_loss: float | None
    open_incident: int | None
    waits: bool  # whether somebody has to decide


def read_told(connection: sql.Connection, run_id: UUID) -> NotifiedRun:
    """The run as it stands now."""
    current = (attempts.c.run_id == runs.c.run_id) & (attempts.c.number == runs.c.current_attempt)
    lag = seconds(runs.c.last_message_at - attempts.c.alive_at)
    age = seconds(sql.func.now() - runs.c.last_message_at)
    query = sql.select(
        runs, attempts.c.ended_at, attempts.c.end_reason, lag.label("lag_s"), age.label("age_s"),
        RUN_WAITS.label("waits"),
    ).outerjoin(attempts, current)  # fmt: skip
    row: Row = connection.execute(query.where(runs.c.run_id == run_id)).one()
    history = (row.lag_s or 0.0) > HISTORY_AFTER_S
    return NotifiedRun(
        row.project, row.name, row.state, history, job_of(row, row.state), row.age_s,
        row.last_step, row.last_loss, row.open_incident, row.waits,
    )  # fmt: skip


def read_escalations(connection: sql.Connection, run_id: UUID, incident: int) -> int:
    """The highest level that was told of an incident because nobody answered."""
    c = commands.c
    highest = sql.func.coalesce(sql.func.max(c.escalation), 0)
    query = sql.select(highest).where(c.run_id == run_id, c.incident == incident)
    return int(connection.execute(query).scalar_one())


def read_channel(connection: sql.Connection, project: str, name: str) -> tuple[Channel, Row]:
    """One channel; raise `NotFound` if there is none."""
    for found in channels_of(connection, project, name):
        return found
    raise NotFound(
        f"Project {project} has no channel {name}", "`spikeguard channels list` lists them"
    )


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


def list_deliveries(
    connection: sql.Connection, project: str, page: PageWanted
) -> tuple[Sequence[Row], str | None]:
    """The delivery log of a project, newest first, and the cursor of the next page."""
    query: sql.Select[Any] = (
        sql.select(deliveries, runs.c.name.label("run"))
        .join(runs, runs.c.run_id == _D.run_id, isouter=True)
        .where(_D.project == project)
    )
    return read_page(connection, query, (_D.at, _D.id), page)
