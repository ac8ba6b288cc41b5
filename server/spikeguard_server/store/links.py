"""Approval links: whoever holds one may decide on one revision of one proposal, once.

Of a link's secret its hash alone is kept. It is spent in the transaction of the decision, under the
run's lock; looking at a link does not spend it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import CommandId, IncidentId, RunId
from spikeguard_server.errors import Forbidden
from spikeguard_server.identity.permissions import hash_secret, new_secret
from spikeguard_server.store.engine import row_as
from spikeguard_server.store.tables.core import approval_links, runs

_L = approval_links.c
_ASK = "Sign in and decide on the confirmation page, or wait for the next message"


def make_link(
    connection: sql.Connection,
    run_id: UUID,
    *,
    incident: int,
    command: int,
    revision: int,
    channel: str,
    person: str | None,
    expires_at: datetime,
) -> str:
    """Make a link: the last part of its address, which leads to the run's rows."""
    secret = new_secret()
    connection.execute(
        sql.insert(approval_links).values(
            run_id=run_id, id=hash_secret(secret).hex(), incident=incident, command=command,
            revision=revision, channel=channel, person=person, expires_at=expires_at,
        )
    )  # fmt: skip
    return f"{run_id.hex}-{secret}"


def spend_link(connection: sql.Connection, run_id: UUID, id: str, person: str) -> bool:
    """Spend a link; whether it could still be spent."""
    spent = connection.execute(
        sql.update(approval_links)
        .where(_L.run_id == run_id, _L.id == id, _L.used_at.is_(None))
        .values(used_at=sql.func.clock_timestamp(), used_by=person)
    )
    return bool(spent.rowcount)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """What a link is good for, and what became of it."""

    id: str
    command: CommandId
    revision: int
    channel: str
    person: str | None  # in whose name it decides; None: the person says who they are
    used_at: datetime | None
    used_by: str | None


def read_link(connection: sql.Connection, text: str) -> LinkRow:
    """The link of an address that ends with `text`; raise `Forbidden` for one that was not made
    here, that a restore from a backup forgot, or that is old."""
    run, _, secret = text.partition("-")
    mine: sql.ColumnElement[bool] = sql.false()
    with suppress(ValueError):
        mine = (_L.run_id == UUID(run)) & (_L.id == hash_secret(secret).hex())
    query = sql.select(
        approval_links, runs.c.project, runs.c.name, (_L.expires_at <= sql.func.now()).label("old")
    ).join(runs, runs.c.run_id == _L.run_id)
    row = connection.execute(query.where(mine)).one_or_none()
    if row is None:
        raise Forbidden("This link was not made by this server, or is not whole", _ASK)
    if row.old:
        raise Forbidden("This link has expired, and nothing was done with it", _ASK)
    command = CommandId(IncidentId(RunId(row.project, row.name), row.incident), row.command)
    return row_as(LinkRow, row, command=command)
