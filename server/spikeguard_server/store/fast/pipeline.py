"""Prepared statements sent together and answered together: one wait for all of them.

Invariants: below SQLAlchemy and psycopg's cursors, inside a transaction that they see as their own.
What fails raises as a cursor's statement would; statements behind it are not carried out. What is
to be written `later` waits for nothing of its own: it goes out before whatever the transaction asks
next, or with its COMMIT, and never after it. psycopg itself prepares nothing on these connections
(`packing.teach`): it would drop ours with its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from struct import Struct
from typing import Any, Final

import psycopg
import sqlalchemy as sql
from psycopg.adapt import Transformer
from psycopg.errors import ReadOnlySqlTransaction, error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait
from sqlalchemy.exc import DBAPIError

from spikeguard_server.store.fast.compute_lock import release, released_while_waiting, take
from spikeguard_server.store.fast.packing import (
    FLOAT8,
    FLOAT8_ARRAY,
    INT8,
    INT8_ARRAY,
    ArrayLoader,
)


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


_PREPARED, _QUEUED, _HEEDED = "prepared by pipeline", "to be written", "the queue is sent"
_PARAMETER = re.compile(r"%\((\w+)\)s")
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of Postgres
_INT4, _INT8, _FLOAT8, _HEAD = Struct("!i"), Struct("!q"), Struct("!d"), Struct("!iiIii")


@dataclass(frozen=True, slots=True)
class Type:
    """How values of one type of Postgres travel."""

    oid: int
    pack: Callable[[Any], bytes]


def _microseconds(at: datetime) -> bytes:
    since = at - _EPOCH
    return _INT8.pack((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _texts(words: Sequence[str]) -> bytes:
    parts = [word.encode() for word in words]
    content = b"".join(_INT4.pack(len(part)) + part for part in parts)
    return _HEAD.pack(1, 0, TEXT.oid, len(parts), 1) + content


INT4: Final = Type(23, _INT4.pack)
INT: Final = Type(INT8, _INT8.pack)
FLOAT: Final = Type(FLOAT8, _FLOAT8.pack)
BOOL: Final = Type(16, lambda value: b"\1" if value else b"\0")
TEXT: Final = Type(25, lambda value: value.encode())
TEXTS: Final = Type(1009, _texts)
BYTES: Final = Type(17, bytes)
KEY: Final = Type(2950, lambda value: value.bytes)
TIME: Final = Type(1184, _microseconds)
INTS: Final = Type(INT8_ARRAY, lambda column: column.packed)
FLOATS: Final = Type(FLOAT8_ARRAY, lambda column: column.packed)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that is prepared once on every connection."""

    name: bytes
    text: bytes
    parameters: tuple[tuple[str, Type], ...]  # in the order of their numbers

    def packed(self, values: Mapping[str, Any]) -> list[bytes | None]:
        """The values as they travel; None is NULL."""
        return [
            None if (value := values[name]) is None else kind.pack(value)
            for name, kind in self.parameters
        ]


def statement(name: str, text: str, types: Mapping[str, Type]) -> Statement:
    """`text` with its `%(name)s` numbered."""
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    places = {found: f"${place}" for place, found in enumerate(names, 1)}
    numbered = _PARAMETER.sub(lambda found: places[found[1]], text)
    kinds = tuple((found, types[found]) for found in names)
    return Statement(name.encode(), numbered.encode(), kinds)


BEGIN: Final = statement("begin", "BEGIN", {})
COMMIT: Final = statement("commit", "COMMIT", {})
Asked = tuple[Statement, Mapping[str, Any]]


def ask(connection: sql.Connection, *asked: Asked) -> list[list[tuple[Any, ...]]]:
    """The rows of every statement, in one wait. Begins the transaction where none is open."""
    known: set[bytes] = connection.info.setdefault(_PREPARED, set())
    queued: list[Asked] = connection.info.pop(_QUEUED, [])
    with driver(connection) as raw, raw.lock:
        if raw.pgconn.transaction_status == TransactionStatus.IDLE:
            queued = [(BEGIN, {}), *queued]
        talk = _talk(raw, known, (*queued, *asked))
        return raw.wait(released_while_waiting(talk))[len(queued) :]


def later(connection: sql.Connection, wanted: Statement, values: Mapping[str, Any]) -> None:
    """Write before whatever this transaction waits for next, its COMMIT at the latest."""
    if connection.info.get(_HEEDED):
        connection.info.setdefault(_QUEUED, []).append((wanted, values))
    else:
        ask(connection, (wanted, values))


def flush(connection: sql.Connection) -> None:
    """Send what is to be written, and wait for it."""
    if connection.info.get(_QUEUED):
        ask(connection)


def read_arrays(
    connection: sql.Connection, text: str, values: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """The rows of the statement `text`, arrays of numbers as `packing.unpacked` reads them."""
    _before(connection)
    with driver(connection) as raw, raw.cursor(binary=True) as cursor:
        for oid in (FLOAT8_ARRAY, INT8_ARRAY):
            cursor.adapters.register_loader(oid, ArrayLoader)
        return cursor.execute(text, values).fetchall()


def heed(engine: sql.Engine) -> None:
    """Let transactions of `engine` send what is to be written, before a statement and with the
    COMMIT; what is rolled back is not sent. Whoever waits for the database lets others compute."""
    sql.event.listen(engine, "connect", _heed)
    sql.event.listen(engine, "before_cursor_execute", _before)
    sql.event.listen(engine, "after_cursor_execute", _after)
    sql.event.listen(engine, "commit", _commit)
    sql.event.listen(engine, "rollback", _forget)
    sql.event.listen(engine, "checkin", _leave)


def _heed(raw: Any, record: Any) -> None:
    del raw
    record.info[_HEEDED] = True


def _leave(raw: Any, record: Any) -> None:
    """Nothing of one who neither committed nor rolled back goes with the next one's transaction."""
    del raw
    record.info.pop(_QUEUED, None)


def _before(connection: sql.Connection, *_: Any) -> None:
    """The driver's own cursor is about to wait."""
    flush(connection)
    release()


def _after(*_: Any) -> None:
    take()


def _commit(connection: sql.Connection) -> None:
    if connection.info.get(_QUEUED):
        ask(connection, (COMMIT, {}))  # SQLAlchemy's own would wait once more, and finds it done
    release()


def _forget(connection: sql.Connection) -> None:
    release()
    if not connection.invalidated:
        connection.info.pop(_QUEUED, None)


def _talk(
    raw: psycopg.Connection[Any], known: set[bytes], asked: Sequence[Asked]
) -> Generator[Wait, Ready | int, list[list[tuple[Any, ...]]]]:
    connection, sent = raw.pgconn, list[bytes | None]()  # names of what is prepared on the way
    connection.enter_pipeline_mode()
    for each, values in asked:
        if each.name not in known and each.name not in sent:
            connection.send_prepare(each.name, each.text, [kind.oid for _, kind in each.parameters])
            sent.append(each.name)
        packed = each.packed(values)
        connection.send_query_prepared(
            each.name, packed, [Format.BINARY] * len(packed), Format.BINARY
        )
        sent.append(None)
    connection.pipeline_sync()
    results = yield from _results(connection)
    connection.exit_pipeline_mode()
    rows: list[list[tuple[Any, ...]]] = []
    for name, result in zip(sent, results, strict=True):
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            raise error_from_result(result)
        if name is None:
            rows.append(_rows(raw, result))
        else:
            known.add(name)
    return rows


def _results(connection: PGconn) -> Generator[Wait, Ready | int, list[PGresult]]:
    """What came back, up to the end of the pipeline."""
    while connection.flush():
        if (yield Wait.RW) & Ready.R:
            connection.consume_input()  # it answers already, and may wait for us to listen
    found: list[PGresult] = []
    while True:
        while connection.is_busy():
            yield Wait.R
            connection.consume_input()
        result = connection.get_result()
        if result is None:
            continue
        if result.status == ExecStatus.PIPELINE_SYNC:
            return found
        found.append(result)


def _rows(raw: psycopg.Connection[Any], result: PGresult) -> list[tuple[Any, ...]]:
    if not result.ntuples:
        return []
    loader = Transformer(raw)
    loader.set_pgresult(result)
    return loader.load_rows(0, result.ntuples, tuple)
