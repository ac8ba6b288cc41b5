"""The ledger of a run: commands that went out and batches that were left out, as one list.

Law: reads only. A command stands where it was delivered, batches where they were told of, so that
nothing moves while a reader turns pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.store.reads.history import PageWanted, Row, newest_first, write_cursor
from spikeguard_server.store.tables.core import attempts, commands
from spikeguard_server.store.tables.skipped import skipped_batches

COMMAND: Final = 0
BATCHES: Final = 1  # told in the same instant they come behind the command
_Order = tuple[sql.ColumnElement[Any], ...]


def read_ledger(
    connection: sql.Connection, run_id: UUID, page: PageWanted
) -> tuple[Sequence[tuple[int, Row]], str | None]:
    """Rows with what they are, newest first, and the cursor of the next page."""
    found = [
        (kind, row)
        for kind, query, order in (_commands(run_id), _batches(run_id))
        for row in connection.execute(newest_first(query, order, page))
    ]
    found.sort(key=_place, reverse=True)
    if len(found) <= page.limit:
        return found, None
    at, *rest = _place(found[page.limit - 1])
    return found[: page.limit], write_cursor((at.isoformat(), *rest))


def _place(entry: tuple[int, Row]) -> tuple[Any, int, int, int]:
    kind, row = entry
    if kind == COMMAND:
        return row.delivered_at, kind, row.incident, row.number
    return row.told_at, kind, row.batch_first, row.rank


def _commands(run_id: UUID) -> tuple[int, sql.Select[Any], _Order]:
    """Those that an agent was given, whatever became of them."""
    c = commands.c
    of_attempt = sql.and_(attempts.c.run_id == c.run_id, attempts.c.number == c.attempt)
    query = (
        sql.select(commands, attempts.c.id.label("attempt_id"))
        .join(attempts, of_attempt)
        .where(c.run_id == run_id, c.delivered_at.is_not(None))
    )
    return COMMAND, query, (c.delivered_at, sql.literal(COMMAND), c.incident, c.number)


def _batches(run_id: UUID) -> tuple[int, sql.Select[Any], _Order]:
    c = skipped_batches.c
    query = sql.select(skipped_batches).where(c.run_id == run_id)
    return BATCHES, query, (c.told_at, sql.literal(BATCHES), c.batch_first, c.rank)
