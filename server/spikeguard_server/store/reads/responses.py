"""What people did and said about an incident, as the API and the post-mortem show it.

Law: reads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.tables.responses import responses

MAX_SHOWN: Final = 200  # the newest of an incident
_S = responses.c


def read_responses(connection: sql.Connection, run_id: UUID, incident: int) -> Sequence[Row]:
    """The newest responses to an incident, oldest first."""
    mine = sql.select(responses).where(_S.run_id == run_id, _S.incident == incident)
    newest = connection.execute(mine.order_by(_S.number.desc()).limit(MAX_SHOWN)).all()
    return newest[::-1]


def read_response(connection: sql.Connection, run_id: UUID, incident: int, number: int) -> Row:
    """A response that exists."""
    mine = (_S.run_id == run_id) & (_S.incident == incident) & (_S.number == number)
    return connection.execute(sql.select(responses).where(mine)).one()
