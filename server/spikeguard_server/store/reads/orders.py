"""Whether an agent has an order to fetch."""

from __future__ import annotations

from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import CommandState
from spikeguard_server.store.tables import core as tables

_C = tables.commands.c


def has_orders(connection: sql.Connection, run_id: UUID) -> bool:
    """Whether a command of the run is approved and was not delivered yet."""
    approved = sql.select(_C.number).where(
        _C.run_id == run_id, _C.state == CommandState.APPROVED.value
    )
    return bool(connection.execute(sql.select(approved.exists())).scalar_one())
