"""The driver's own connection below SQLAlchemy's, for what only it can do.

Law: the transaction stays SQLAlchemy's; what the driver raises comes out as SQLAlchemy would raise
it, without the statement's values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sql
from psycopg.errors import ReadOnlySqlTransaction
from sqlalchemy.exc import DBAPIError


@contextmanager
def driver(connection: sql.Connection) -> Iterator[psycopg.Connection[Any]]:
    """The connection itself."""
    raw: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        yield raw
    except psycopg.Error as error:
        if raw.closed or isinstance(error, ReadOnlySqlTransaction):
            connection.invalidate(error)
        raise DBAPIError.instance(
            "a message's statement", None, error, psycopg.Error,
            hide_parameters=True, dialect=connection.dialect,
        ) from error  # fmt: skip
