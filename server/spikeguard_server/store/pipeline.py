"""Statements that leave together, and are waited for once: psycopg's pipeline.

What is to be written `later` waits for nothing of its own: it leaves before whatever the
transaction asks next, or with its COMMIT, and never after it. What fails raises as SQLAlchemy would
raise it; statements behind it are not carried out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import sqlalchemy as sql
from psycopg.errors import ReadOnlySqlTransaction
from psycopg.types.numeric import Int8
from sqlalchemy.exc import DBAPIError

from spikeguard_server.store.packing import FLOAT8_ARRAY, INT8_ARRAY, ArrayLoader

Asked = tuple[str, Mapping[str, Any]]  # a statement and its values
_SELECT: Final = re.compile(r"\s*SELECT\b")
_QUEUED: Final = "to be written"
_HAS_EVENTS: Final = "the queue is sent"


@contextmanager
def driver(connection: sql.Connection) -> Iterator[psycopg.Connection[Any]]:
    """The driver's own connection; what it raises comes out as SQLAlchemy would raise it, without
    the statement's values."""
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


def ask(connection: sql.Connection, *asked: Asked) -> list[list[tuple[Any, ...]]]:
    """The rows of each SELECT of `asked`, in one wait. Begins a transaction where none is open."""
    queued: list[Asked] = connection.info.pop(_QUEUED, [])
    with driver(connection) as raw:
        with raw.pipeline():
            cursors = [
                raw.cursor(binary=True).execute(text, _typed(values), prepare=True)
                for text, values in (*queued, *asked)
            ]
        wanted = zip(asked, cursors[len(queued) :], strict=True)
        return [c.fetchall() if _SELECT.match(text) else [] for (text, _), c in wanted]


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The driver's type of a number goes by its size, and a prepared statement by its types."""
    return {name: Int8(v) if type(v) is int else v for name, v in values.items()}


def later(connection: sql.Connection, text: str, values: Mapping[str, Any]) -> None:
    """Write before whatever this transaction waits for next, its COMMIT at the latest."""
    if connection.info.get(_HAS_EVENTS):
        connection.info.setdefault(_QUEUED, []).append((text, values))
    else:
        ask(connection, (text, values))


def read_arrays(
    connection: sql.Connection, text: str, values: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """The rows of the statement `text`, arrays of numbers as `packing.unpacked` reads them."""
    _flush(connection)
    with driver(connection) as raw, raw.cursor(binary=True) as cursor:
        for oid in (FLOAT8_ARRAY, INT8_ARRAY):
            cursor.adapters.register_loader(oid, ArrayLoader)
        return cursor.execute(text, values).fetchall()


def send_queued(engine: sql.Engine) -> None:
    """Let transactions of `engine` send what is to be written, before a statement and with the
    COMMIT; what is rolled back is not sent."""
    sql.event.listen(engine, "connect", _connected)
    sql.event.listen(engine, "before_cursor_execute", _flush)
    sql.event.listen(engine, "commit", _commit)
    sql.event.listen(engine, "rollback", _forget)
    sql.event.listen(engine, "checkin", _returned)


def _connected(raw: psycopg.Connection[Any], record: Any) -> None:
    raw.prepare_threshold = 2**31  # what is to be prepared says so
    record.info[_HAS_EVENTS] = True


def _returned(_: Any, record: Any) -> None:
    """Nothing of one who neither committed nor rolled back goes with the next one's transaction."""
    record.info.pop(_QUEUED, None)


def _flush(connection: sql.Connection, *_: Any) -> None:
    if connection.info.get(_QUEUED):
        ask(connection)


def _commit(connection: sql.Connection) -> None:
    if connection.info.get(_QUEUED):
        ask(connection, ("COMMIT", {}))  # SQLAlchemy's own would wait once more, and finds it done


def _forget(connection: sql.Connection) -> None:
    if not connection.invalidated:
        connection.info.pop(_QUEUED, None)
