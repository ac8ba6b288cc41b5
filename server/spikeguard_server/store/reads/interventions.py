"""What was done to a run: commands that the job was given and changes made outside, in one list.

Law: reads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import CommandId, IncidentId, RunId
from spikeguard_server.store.effects import effects_of
from spikeguard_server.store.reads.history import PageWanted, Row, write_cursor
from spikeguard_server.store.tables.core import commands
from spikeguard_server.store.tables.notes import notes

GIVEN: Final = ("approved", "delivered", "applied", "judged", "refused", "failed", "unknown")
_C, _N = commands.c, notes.c
_AT = sql.func.coalesce(_C.decided_at, _C.proposed_at)


@dataclass(frozen=True, slots=True)
class Intervention:
    """A command or a note, with what it did to the loss where that is kept."""

    id: str  # of a command `run#3.1`, of a note `run/note-2`
    command: Row | None
    note: Row | None  # of a command: what was expected of it, and what came

    @property
    def at(self) -> datetime:
        """When it was decided, or told."""
        row = self.note if self.command is None else self.command
        assert row is not None
        moment: datetime = row.at if self.command is None else row.decided_at or row.proposed_at
        return moment

    @property
    def key(self) -> tuple[datetime, str]:
        """What the list is sorted by, the newest first."""
        return self.at, self.id


def read_interventions(
    connection: sql.Connection, run_id: UUID, run: RunId, page: PageWanted
) -> tuple[Sequence[Intervention], str | None]:
    """The newest first, and the cursor of the next page."""
    until = None if page.after is None else page.after[0]
    found = [
        *_commands(connection, run_id, run, until, page.limit + 1),
        *_notes(connection, run_id, run, until, page.limit + 1),
    ]
    found.sort(key=lambda one: one.key, reverse=True)
    if page.after is not None:
        found = [one for one in found if one.key < page.after]
    if len(found) <= page.limit:
        return found, None
    last = found[page.limit - 1]
    return found[: page.limit], write_cursor((last.at.isoformat(), last.id))


def _commands(
    connection: sql.Connection, run_id: UUID, run: RunId, until: datetime | None, most: int
) -> list[Intervention]:
    query = sql.select(commands).where(
        _C.run_id == run_id, _C.state.in_(GIVEN), _C.verb != "watch"
    )  # fmt: skip
    if until is not None:
        query = query.where(until >= _AT)
    order = (_AT.desc(), _C.incident.desc(), _C.number.desc())
    rows = connection.execute(query.order_by(*order).limit(most + 1)).all()
    ids = [str(CommandId(IncidentId(run, row.incident), row.number)) for row in rows]
    effects = effects_of(connection, run_id, ids)
    return [Intervention(id, row, effects.get(id)) for id, row in zip(ids, rows, strict=True)]


def _notes(
    connection: sql.Connection, run_id: UUID, run: RunId, until: datetime | None, most: int
) -> list[Intervention]:
    query = sql.select(notes).where(_N.run_id == run_id, _N.shown)
    if until is not None:
        query = query.where(_N.at <= until)
    rows = connection.execute(query.order_by(_N.at.desc(), _N.number.desc()).limit(most + 1)).all()
    return [Intervention(f"{run}/note-{row.number}", None, row) for row in rows]
