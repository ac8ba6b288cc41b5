"""Notifications through the database when a run's command changes.

Invariants: they say that there is something to look at, never what. Sent only where a command
changes, in that change's own transaction: a NOTIFY in every commit would halve what Postgres takes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import sqlalchemy as sql

from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import Statement

_log = logging.getLogger(__name__)
CHANNEL = "spikeguard_commands"
CONNECT_TIMEOUT_S = 5


def notification(run_id: UUID) -> Statement:
    """The statement that lets whoever waits for orders of the run know, once it is committed."""
    return "SELECT pg_notify(%s, %s)", (CHANNEL, str(run_id))


@contextmanager
def listening(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """A connection outside the pool that hears of them; raise `psycopg.Error` if there is none."""
    url = sql.make_url(settings.database_url).set(drivername="postgresql")
    with psycopg.connect(
        url.render_as_string(hide_password=False),
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        application_name="spikeguard orders",
    ) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        yield connection


def notified(connection: psycopg.Connection[Any]) -> list[UUID]:
    """The runs of which a command changed since the last look. Whoever may connect to the database
    may notify as well: what names no run is left out."""
    told = connection.notifies(timeout=0)
    return [run_id for each in told if (run_id := _read(each.payload)) is not None]


def _read(payload: str) -> UUID | None:
    try:
        return UUID(payload)
    except ValueError:
        _log.warning("an order was told for %.80r, which is no run", payload)
        return None
