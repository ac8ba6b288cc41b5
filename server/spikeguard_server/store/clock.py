"""The database's clock, by which everything is stored and judged."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sql

_NOW = sql.select(sql.func.clock_timestamp())


def database_now(connection: sql.Connection) -> datetime:
    """The time by the database's clock, the same for every replica."""
    now: datetime = connection.execute(_NOW).scalar_one()
    return now
