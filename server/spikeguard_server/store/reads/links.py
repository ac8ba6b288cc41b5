"""Approval links as the page shows them.

Law: reads only: looking at a link does not spend it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.errors import Forbidden
from spikeguard_server.store.tables.notices import approval_links

_L = approval_links.c


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


def read_clock(connection: sql.Connection) -> float:
    """The database's clock, in seconds since the epoch."""
    now = sql.extract("epoch", sql.func.clock_timestamp())
    return float(connection.execute(sql.select(now)).scalar_one())
