"""Statements that leave together and are waited for once: psycopg's pipeline.

What fails raises as SQLAlchemy would raise it; statements behind it are not carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import sqlalchemy as sql
from psycopg.errors import ReadOnlySqlTransaction
from psycopg.types.numeric import Int8BinaryDumper
from sqlalchemy.exc import DBAPIError

Statement = tuple[str, Mapping[str, Any] | Sequence[Any]]  # with its values


def ask(
    connection: sql.Connection, *statements: Statement, prepare: bool = True
) -> list[list[tuple[Any, ...]]]:
    """The rows of each of `statements`, none of one that returns none, after one wait.

    Begins a transaction where none is open. Arrays of numbers come as
    `store.packing` reads them. `prepare`: the text is one of few, and the database keeps its plan.
    """
    raw: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    cursors = []
    try:
        with raw.pipeline():
            for text, values in statements:
                cursor = raw.cursor(binary=True)
                # The driver's type of a number goes by its size, a prepared statement by its types.
                cursor.adapters.register_dumper(int, Int8BinaryDumper)
                cursors.append(cursor.execute(text, values, prepare=prepare))
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]
    except psycopg.Error as error:
        if raw.closed or isinstance(error, ReadOnlySqlTransaction):
            connection.invalidate(error)
        raise DBAPIError.instance(
            "a statement of a pipeline", None, error, psycopg.Error,
            hide_parameters=True, dialect=connection.dialect,
        ) from error  # fmt: skip
