"""Why the database failed, as one of a closed set of words.

Invariants: every error that the database's state explains has a cause; none has text of the
database's own, which may name hosts, roles and rows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import psycopg
from sqlalchemy.exc import DBAPIError


class Outage(StrEnum):
    """What keeps the database from its work."""

    UNREACHABLE = "unreachable"
    STARTING = "starting"  # or stopping
    DISK_FULL = "disk_full"
    READ_ONLY = "read_only"
    CONNECTIONS = "too_many_connections"
    MEMORY = "out_of_memory"
    SIGN_IN = "sign_in_refused"
    TIMEOUT = "timeout"
    OTHER = "other"


TOLD: Final[dict[Outage, tuple[str, str]]] = {
    Outage.UNREACHABLE: (
        "The database gives the server no connection",
        "Start it, or read in its log and the server's why it refuses: it is starting, or has no "
        "connection left (max_connections), or DATABASE_URL does not fit",
    ),
    Outage.STARTING: ("The database is starting or stopping", "Wait for it"),
    Outage.DISK_FULL: ("The database's disk is full", "Make room on the disk of Postgres"),
    Outage.READ_ONLY: ("The database takes no writes for now", "Wait for the failover to end"),
    Outage.CONNECTIONS: (
        "The database has no connection left",
        "Raise max_connections of Postgres, or lower SPIKEGUARD_POOL_SIZE",
    ),
    Outage.MEMORY: ("The database has no memory left", "Give Postgres more memory"),
    Outage.SIGN_IN: ("The database refuses the server", "Check DATABASE_URL and its password"),
    Outage.TIMEOUT: ("The database did not answer in time", "Wait, then try again"),
    Outage.OTHER: ("The database failed", "Look at the server's log and that of Postgres"),
}
_BY_STATE: Final = {
    "53100": Outage.DISK_FULL,
    "53200": Outage.MEMORY,
    "53300": Outage.CONNECTIONS,
    "25006": Outage.READ_ONLY,
    "57014": Outage.TIMEOUT,
    "55P03": Outage.TIMEOUT,
    "3D000": Outage.SIGN_IN,
}
_BY_CLASS: Final = {"57": Outage.STARTING, "28": Outage.SIGN_IN, "08": Outage.UNREACHABLE}


def outage_of(error: BaseException | None) -> Outage | None:
    """Why the database failed; None where its state does not explain the error."""
    if isinstance(error, DBAPIError):
        error = error.orig
    if not isinstance(error, psycopg.Error):
        return None
    state = error.sqlstate
    if state is not None:
        found = _BY_STATE.get(state) or _BY_CLASS.get(state[:2])
        return found or (Outage.OTHER if isinstance(error, psycopg.OperationalError) else None)
    if not isinstance(error, psycopg.OperationalError):
        return None
    return Outage.UNREACHABLE  # a refused connection has no state, only libpq's words
