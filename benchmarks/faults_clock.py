"""A database whose clock can be set, without setting the machine's.

`now()` and its kin are found in a schema before Postgres' own; they add an offset from a table.
"""

from __future__ import annotations

import sqlalchemy as sql

_SHIFTED = """
    create schema shifted;
    create table shifted.offset_s as select 0::float8 as s;
    create function shifted.clock_timestamp() returns timestamptz language sql volatile as
        'select pg_catalog.clock_timestamp() + make_interval(secs => s) from shifted.offset_s';
    create function shifted.statement_timestamp() returns timestamptz language sql stable as
        'select pg_catalog.statement_timestamp() + make_interval(secs => s) from shifted.offset_s';
    create function shifted.now() returns timestamptz language sql stable as
        'select pg_catalog.now() + make_interval(secs => s) from shifted.offset_s';
    alter function number_audit() set search_path = shifted, pg_catalog, pg_temp;
"""


def let_jump(connection: sql.Connection) -> None:
    """Give the database that `connection` goes to a clock that `jump` sets; others see it once
    they connect."""
    connection.exec_driver_sql(_SHIFTED)
    name = connection.engine.url.database
    connection.exec_driver_sql(
        f"ALTER DATABASE {name} SET search_path = shifted, pg_catalog, public"
    )


def jump(connection: sql.Connection, seconds: float) -> None:
    """Set the clock so far forwards, or back."""
    connection.execute(sql.text("update shifted.offset_s set s = s + :s"), {"s": seconds})
