"""Lists page by page: a page begins behind the last row of the one before, by the key that sorts.

So no page costs more than the first. A cursor is that key, opaque to the caller.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from spikeguard_server.errors import Unprocessable

MAX_LIMIT = 1000
Row = sql.Row[Any]
Reader = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class PageWanted:
    """Which part of a list is asked for."""

    limit: int
    after: tuple[Any, ...] | None = None  # the key of the last entry that was seen


def read_page(
    connection: sql.Connection,
    query: sql.Select[Any],
    key: Sequence[sql.ColumnElement[Any]],
    page: PageWanted,
    *,
    descending: bool = True,
) -> tuple[Sequence[Row], str | None]:
    """The rows of `query` sorted by `key`, which is unique, and the cursor of the next page."""
    if page.after is not None:
        place = sql.tuple_(*key)
        after = sql.tuple_(*page.after, types=[column.type for column in key])
        query = query.where(place < after if descending else place > after)
    names = [f"page_key_{at}" for at in range(len(key))]
    query = query.add_columns(*(c.label(n) for c, n in zip(key, names, strict=True)))
    query = query.order_by(*(c.desc() if descending else c.asc() for c in key))
    found = connection.execute(query.limit(page.limit + 1)).all()
    if len(found) <= page.limit:
        return found, None
    last = found[page.limit - 1]._mapping
    return found[: page.limit], write_cursor([last[name] for name in names])


def write_cursor(key: Sequence[Any]) -> str:
    """A place in a list."""
    plain = json.dumps([str(part) for part in key]).encode()
    return base64.urlsafe_b64encode(plain).decode().rstrip("=")


def read_cursor(cursor: str | None, readers: Sequence[Reader]) -> tuple[Any, ...] | None:
    """The key that `write_cursor` wrote; raise `Unprocessable` for anything else."""
    if cursor is None:
        return None
    try:
        plain = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return tuple(read(part) for read, part in zip(readers, plain, strict=True))
    except (ValueError, TypeError, AttributeError):
        raise Unprocessable(
            "This cursor was not made by this list",
            "Take `next_cursor` from the page before, as it stands",
            field="cursor",
        ) from None
