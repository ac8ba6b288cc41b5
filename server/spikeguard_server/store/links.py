"""The rows behind approval links: each is good for one decision.

Spent in the transaction of the decision, under the run's lock; looking at a link does not spend it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.errors import Forbidden
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables.core import approval_links

_L = approval_links.c


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
    """Write a link's row; its id."""
    id = secrets.token_urlsafe(12)
    connection.execute(
        sql.insert(approval_links).values(
            run_id=run_id, id=id, incident=incident, command=command, revision=revision,
            channel=channel, person=person, made_at=sql.func.clock_timestamp(),
            expires_at=expires_at,
        )
    )  # fmt: skip
    return id


def spend_link(connection: sql.Connection, run_id: UUID, id: str, person: str, origin: str) -> bool:
    """Spend a link; whether it could still be spent."""
    spent = connection.execute(
        sql.update(approval_links)
        .where(_L.run_id == run_id, _L.id == id, _L.used_at.is_(None))
        .values(
            used_at=sql.func.clock_timestamp(), used_by=storable(person), used_from=origin[:100]
        )
    )
    return bool(spent.rowcount)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """What became of a link."""

    channel: str
    person: str | None  # in whose name it decides; None: the person says who they are
    used_at: datetime | None
    used_by: str | None


def read_link_row(connection: sql.Connection, run_id: UUID, id: str) -> LinkRow:
    """A link's row; raise `Forbidden` if there is none, as after a restore from a backup."""
    query = sql.select(_L.channel, _L.person, _L.used_at, _L.used_by)
    row = connection.execute(query.where(_L.run_id == run_id, _L.id == id)).one_or_none()
    if row is None:
        raise Forbidden("This link is not known here", "Sign in and decide")
    return LinkRow(*row)
