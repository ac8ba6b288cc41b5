"""Notes of a run as the API shows them.

Law: reads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.store.reads.history import PageWanted, Row, write_cursor
from spikeguard_server.store.tables.core import attempts
from spikeguard_server.store.tables.notes import notes

MAX_SHOWN = 100  # of a run, that are shown with it
_N = notes.c
_HERE = (attempts.c.run_id == _N.run_id) & (attempts.c.number == _N.attempt)
_NOTES = sql.select(notes, attempts.c.id.label("attempt_id")).outerjoin(attempts, _HERE)


def read_notes(
    connection: sql.Connection,
    run_id: UUID,
    page: PageWanted = PageWanted(MAX_SHOWN),  # noqa: B008
) -> tuple[Sequence[Row], str | None]:
    """What was told of a run and found, newest first, and the cursor of the next page."""
    query = _NOTES.where(_N.run_id == run_id, _N.shown).order_by(_N.number.desc())
    if page.after is not None:
        query = query.where(_N.number < page.after[0])
    found = connection.execute(query.limit(page.limit + 1)).all()
    if len(found) <= page.limit:
        return found, None
    return found[: page.limit], write_cursor((found[page.limit - 1].number,))


def read_note(connection: sql.Connection, run_id: UUID, number: int) -> Row:
    """A note that exists."""
    return connection.execute(_NOTES.where(_N.run_id == run_id, _N.number == number)).one()
