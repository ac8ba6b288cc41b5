"""The database's connections: their pool with every timeout named, statements that are waited for
together, its clock, and why it failed, in words without any text of its own, which may name hosts,
roles and rows.

A connection that rested for longer than `TRUSTED_S` is asked whether it lives before it is used;
asking each time would be one round trip of every three.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar, cast

import psycopg
import sqlalchemy as sql
from psycopg.errors import ReadOnlySqlTransaction
from psycopg.types.json import set_json_dumps
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrDumperUnknown
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError, DisconnectionError

from spikeguard_server.settings import Settings

T = TypeVar("T")  # a dataclass
CONNECT_TIMEOUT_S = 5
POOL_TIMEOUT_S = 5.0  # how long a call waits for a connection; then 429
STATEMENT_TIMEOUT_S = 15
IDLE_TRANSACTION_TIMEOUT_S = 60
TRUSTED_S = 1.0
_RESTED = "rested_since"
_UNWRITTEN = "unwritten"
_CURSORS = "cursors"  # by text: each knows how the values of its statement are written and read
Statement = tuple[str, Mapping[str, Any] | Sequence[Any]]  # with its values


def storable(text: str) -> str:
    """`text` without what no text column takes: NUL, and halves of surrogate pairs."""
    return _octets(text).decode("utf-8")


def _octets(text: str) -> bytes:
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace")


def storable_json(value: Any) -> Any:
    """Plain JSON with every text of it, keys included, made storable."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(name): storable_json(item) for name, item in value.items()}
    return [storable_json(item) for item in value] if isinstance(value, list) else value


class _TextDumper(StrDumperUnknown):
    def dump(self, obj: str) -> bytes:
        return _octets(obj)


psycopg.adapters.register_dumper(str, _TextDumper)
set_json_dumps(lambda value: json.dumps(storable_json(value)))


def open_engine(settings: Settings) -> sql.Engine:
    """A pool on `settings.database_url`; nothing connects before the first use."""
    limits: dict[str, int | str] = {
        "statement_timeout": STATEMENT_TIMEOUT_S * 1000,
        "idle_in_transaction_session_timeout": IDLE_TRANSACTION_TIMEOUT_S * 1000,
        "timezone": "UTC",
        "search_path": "public",  # whatever default the role has
    }
    engine = sql.create_engine(
        settings.database_url,
        isolation_level="AUTOCOMMIT",  # the driver waits for its own BEGIN; ours leaves by `ask`
        pool_size=settings.pool_size,
        max_overflow=0,
        hide_parameters=True,  # they hold keys of channels, and errors are logged
        pool_timeout=POOL_TIMEOUT_S,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "prepare_threshold": 2**31,  # what is to be prepared says so
            "application_name": "spikeguard",
            "options": " ".join(f"-c {name}={value}" for name, value in limits.items()),
        },
    )
    sql.event.listen(engine, "checkin", _rests)
    sql.event.listen(engine, "checkout", _check)
    sql.event.listen(engine, "handle_error", _judge)
    sql.event.listen(engine, "begin", _begin)
    return engine


def _rests(_: Any, record: Any) -> None:
    record.info[_RESTED] = monotonic()


def _check(connection: psycopg.Connection[Any], record: Any, _: Any) -> None:
    """Raise `DisconnectionError`, upon which the pool takes another one, if it is dead."""
    if connection.closed:
        raise DisconnectionError
    if monotonic() - record.info.get(_RESTED, monotonic()) < TRUSTED_S:
        return
    try:
        connection.execute("SELECT")
        connection.rollback()
    except psycopg.Error as error:
        raise DisconnectionError from error


def _judge(context: sql.ExceptionContext) -> None:
    """Refused to write: after a failover the address leads on, and these connections stayed."""
    if isinstance(context.original_exception, ReadOnlySqlTransaction):
        context.is_disconnect = True  # upon which the pool lets go of them all


def _begin(connection: sql.Connection) -> None:
    """The transaction begins with what is waited for first, unless the driver begins it. What an
    earlier one did not come to write is forgotten."""
    by_driver = "isolation_level" in connection.get_execution_options()
    connection.info[_UNWRITTEN] = [] if by_driver else [("BEGIN", ())]


def write(connection: sql.Connection, *statements: Statement) -> None:
    """Have the database carry out `statements`, which return nothing: with whatever the transaction
    that began waits for next, its commit at the latest."""
    connection.info.setdefault(_UNWRITTEN, []).extend(statements)


def _flush(connection: sql.Connection, *_: Any) -> None:
    if connection.info.get(_UNWRITTEN):
        ask(connection)


def _forget(connection: sql.Connection, *_: Any) -> None:
    if not connection.invalidated:  # with it goes what it holds
        connection.info.pop(_UNWRITTEN, None)


for _moment in ("before_cursor_execute", "commit"):
    sql.event.listen(sql.Engine, _moment, _flush)
sql.event.listen(sql.Engine, "rollback_savepoint", _forget)


class Prepared:
    """A query that is compiled once; its rows leave what SQLAlchemy makes of each answer out."""

    def __init__(self, query: sql.Select[Any]) -> None:
        compiled = query.compile(dialect=PGDialect_psycopg())  # type: ignore[no-untyped-call]
        self._text, self._fixed = str(compiled), compiled.params
        names = [str(column.key) for column in query.selected_columns]
        self._row: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]

    def rows(self, connection: sql.Connection, **values: Any) -> list[Any]:
        """What it finds, `values` being those of its `bindparam`s."""
        (found,) = ask(connection, (self._text, {**self._fixed, **values}))
        return list(map(self._row._make, found))


def ask(
    connection: sql.Connection, *statements: Statement, prepare: bool = True
) -> list[list[tuple[Any, ...]]]:
    """The rows of each of `statements`, none of one that returns none, after one wait: they leave
    by psycopg's pipeline, behind what is to be written.

    Those that return rows are different ones. Arrays of numbers come as `store.curves` reads them.
    `prepare`: the text is one of few, and the database keeps its plan. What fails raises as
    SQLAlchemy would raise it; statements behind it are not carried out.
    """
    raw: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    known: dict[str, Any] = connection.info.setdefault(_CURSORS, {}) if prepare else {}
    unwritten: list[Statement] = connection.info.pop(_UNWRITTEN, [])
    cursors = []
    try:
        with raw.pipeline():
            for text, values in (*unwritten, *statements):
                if (cursor := known.get(text)) is None:
                    cursor = known[text] = raw.cursor(binary=True)
                    # The driver takes the type of a number by its size: each another statement.
                    cursor.adapters.register_dumper(int, Int8BinaryDumper)
                cursors.append(cursor.execute(text, values, prepare=prepare))
        asked = cursors[len(unwritten) :]
        return [[] if cursor.rownumber is None else cursor.fetchall() for cursor in asked]
    except psycopg.Error as error:
        if raw.closed or isinstance(error, ReadOnlySqlTransaction):
            connection.invalidate(error)
        raise DBAPIError.instance(
            "a statement of a pipeline", None, error, psycopg.Error,
            hide_parameters=True, dialect=connection.dialect,
        ) from error  # fmt: skip


def row_as(kind: type[T], row: Any, /, **given: Any) -> T:
    """A `kind` of the columns that are called as its fields, beside what is `given`."""
    for field in fields(cast(Any, kind)):
        if field.name not in given and hasattr(row, field.name):
            given[field.name] = getattr(row, field.name)
    return kind(**given)


def takes_no_writes(connection: sql.Connection) -> bool:
    """Whether a transaction begun now may not write: on a standby, or where that is set."""
    setting = sql.func.current_setting("transaction_read_only")
    return bool(connection.execute(sql.select(setting)).scalar_one() == "on")


_NOW = sql.select(sql.func.clock_timestamp())


def database_now(connection: sql.Connection) -> datetime:
    """The time by the database's clock, the same for every replica."""
    now: datetime = connection.execute(_NOW).scalar_one()
    return now


def seconds(interval: sql.ColumnElement[Any]) -> sql.ColumnElement[float]:
    """How long an interval is."""
    return sql.cast(sql.extract("epoch", interval), sql.Double)


def lock(connection: sql.Connection, name: str) -> None:
    """Let nobody else take the lock of this name until the transaction ends."""
    key = sql.func.hashtextextended(name, 0)
    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(key)))


class Outage(NamedTuple):
    """What keeps the database from its work: a word for programs, a sentence, what to do."""

    cause: str
    message: str
    remedy: str


_UNREACHABLE: Final = Outage(
    "unreachable",
    "The database gives the server no connection",
    "Start it, or read in its log and the server's why it refuses: it is starting, or has no "
    "connection left (max_connections), or DATABASE_URL does not fit",
)
_SIGN_IN: Final = Outage(
    "sign_in_refused", "The database refuses the server", "Check DATABASE_URL and its password"
)
_TIMEOUT: Final = Outage("timeout", "The database did not answer in time", "Wait, then try again")
OUTAGES: Final = {  # of the whole SQLSTATE, or of its class
    "53100": Outage(
        "disk_full", "The database's disk is full", "Make room on the disk of Postgres"
    ),
    "53200": Outage(
        "out_of_memory", "The database has no memory left", "Give Postgres more memory"
    ),
    "53300": Outage(
        "too_many_connections",
        "The database has no connection left",
        "Raise max_connections of Postgres, or lower SPIKEGUARD_POOL_SIZE",
    ),
    "25006": Outage(
        "read_only", "The database takes no writes for now", "Wait for the failover to end"
    ),
    "57014": _TIMEOUT,
    "55P03": _TIMEOUT,
    "3D000": _SIGN_IN,
    "57": Outage("starting", "The database is starting or stopping", "Wait for it"),
    "28": _SIGN_IN,
    "08": _UNREACHABLE,
}
OTHER_OUTAGE: Final = Outage(
    "other", "The database failed", "Look at the server's log and that of Postgres"
)


def outage_of(error: BaseException | None) -> Outage | None:
    """Why the database failed; None where its state does not explain the error."""
    if isinstance(error, DBAPIError):
        error = error.orig
    if not isinstance(error, psycopg.Error):
        return None
    state = error.sqlstate
    operational = isinstance(error, psycopg.OperationalError)
    if state is None:  # a refused connection has none, only libpq's words
        return _UNREACHABLE if operational else None
    found = OUTAGES.get(state) or OUTAGES.get(state[:2])
    return found or (OTHER_OUTAGE if operational else None)
