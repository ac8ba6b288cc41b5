"""Lists page by page: a page begins behind the last row of the one before, by the key that sorts.

So no page costs more than the first. A cursor is that key, opaque to the caller.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sql
from pydantic import BaseModel, Field

from spikeguard_server.errors import Unprocessable

Row = sql.Row[Any]


class PageWanted(BaseModel):
    """Which part of a list is asked for."""

    limit: int = Field(default=100, ge=1, le=1000, description="items of one page")
    cursor: str | None = Field(default=None, max_length=400, description="`next_cursor` as it came")


def read_page(
    connection: sql.Connection,
    query: sql.Select[Any],
    key: Sequence[sql.ColumnElement[Any]],
    page: PageWanted,
    *,
    descending: bool = True,
) -> tuple[Sequence[Row], str | None]:
    """The rows of `query` sorted by `key`, which is unique, and the cursor of the next page; raise
    `Unprocessable` for a cursor that no such list made."""
    if page.cursor is not None:
        place = sql.tuple_(*key)
        after = sql.tuple_(*_read_cursor(page.cursor, key), types=[column.type for column in key])
        query = query.where(place < after if descending else place > after)
    names = [f"page_key_{at}" for at in range(len(key))]
    query = query.add_columns(*(c.label(n) for c, n in zip(key, names, strict=True)))
    query = query.order_by(*(c.desc() if descending else c.asc() for c in key))
    found = connection.execute(query.limit(page.limit + 1)).all()
    if len(found) <= page.limit:
        return found, None
    last = found[page.limit - 1]._mapping
    plain = json.dumps([str(last[name]) for name in names]).encode()
    return found[: page.limit], base64.urlsafe_b64encode(plain).decode().rstrip("=")


def _read_cursor(cursor: str, key: Sequence[sql.ColumnElement[Any]]) -> list[Any]:
    try:
        plain = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return [_read(column.type, part) for column, part in zip(key, plain, strict=True)]
    except (ValueError, TypeError, AttributeError):
        raise Unprocessable(
            "This cursor was not made by this list",
            "Take `next_cursor` from the page before, as it stands",
            field="cursor",
        ) from None


def _read(kind: sql.types.TypeEngine[Any], text: str) -> Any:
    """A part of a key; raises `ValueError` for one that no row can have."""
    if kind.python_type is datetime:
        return datetime.fromisoformat(text)
    value = kind.python_type(text)
    most = 2**63 if isinstance(kind, sql.BigInteger) else 2**31
    if isinstance(value, int) and abs(value) >= most:
        raise ValueError(text)
    return value
