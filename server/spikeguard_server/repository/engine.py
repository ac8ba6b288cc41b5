"""The pool of connections, with every wait named."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sql

from spikeguard_server.settings import Settings

CONNECT_TIMEOUT_S = 5
IDLE_TRANSACTION_TIMEOUT_S = 60


def open_engine(settings: Settings) -> sql.Engine:
    """A pool on `settings.database_url`; nothing connects before the first use."""
    limits = {
        "statement_timeout": int(settings.statement_timeout_s * 1000),
        "idle_in_transaction_session_timeout": IDLE_TRANSACTION_TIMEOUT_S * 1000,
        "timezone": "UTC",
    }
    return sql.create_engine(
        settings.database_url,
        pool_size=settings.pool_size,
        max_overflow=0,
        pool_timeout=settings.pool_timeout_s,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "spikeguard",
            "options": " ".join(f"-c {name}={value}" for name, value in limits.items()),
        },
    )


def database_now(connection: sql.Connection) -> datetime:
    """The database's clock: the only one by which validity is judged."""
    now: datetime = connection.execute(_NOW).scalar_one()
    return now


_NOW = sql.select(sql.func.clock_timestamp())
