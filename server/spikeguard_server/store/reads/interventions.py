"""What was done to a run: commands that the job was given and changes made outside, in one list.

Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.entities import CommandRow
from spikeguard_server.store.commands import commands_by_key
from spikeguard_server.store.effects import effects_of
from spikeguard_server.store.paging import PageWanted, Row, read_page
from spikeguard_server.store.tables.core import commands
from spikeguard_server.store.tables.people import notes

GIVEN: Final = ("approved", "delivered", "applied", "judged", "refused", "failed", "unknown")
_C, _N = commands.c, notes.c


def _moment(text: str) -> datetime:
    """Of a cursor; aware, as those of the rows are."""
    return datetime.fromisoformat(text).astimezone(UTC)


READERS: Final = (_moment, int, int, int)  # of a cursor
_AT = sql.func.coalesce(_C.decided_at, _C.proposed_at).label("at")


@dataclass(frozen=True, slots=True)
class Intervention:
    """A command or a note, with what it did to the loss where that is kept."""

    command: CommandRow | None
    note: Row | None  # of a command: what was expected of it, and what came


def read_interventions(
    connection: sql.Connection, run_id: UUID, page: PageWanted
) -> tuple[Sequence[Intervention], str | None]:
    """The newest first, and the cursor of the next page."""
    ordered = sql.select(_AT, _C.incident, _C.number, sql.literal(0).label("note")).where(
        _C.run_id == run_id, _C.state.in_(GIVEN), _C.verb != "watch"
    )
    # Told in the same instant a note comes before the command.
    told = sql.select(_N.at, sql.literal(2**31 - 1), sql.literal(0), _N.number)
    both = sql.union_all(ordered, told.where(_N.run_id == run_id, _N.shown)).subquery()
    found, more = read_page(connection, sql.select(both), tuple(both.c), page)
    given = commands_by_key(
        connection, run_id, [(r.incident, r.number) for r in found if not r.note]
    )
    effects = effects_of(connection, run_id, [str(one.id) for one in given.values()])
    here = sql.select(notes).where(_N.run_id == run_id, _N.number.in_([r.note for r in found]))
    outside = {row.number: row for row in connection.execute(here)}
    return [_intervention(row, given, outside, effects) for row in found], more


def _intervention(
    row: Row,
    given: Mapping[tuple[int, int], CommandRow],
    outside: Mapping[int, Row],
    effects: Mapping[str, Row],
) -> Intervention:
    if row.note:
        return Intervention(None, outside[row.note])
    command = given[row.incident, row.number]
    return Intervention(command, effects.get(str(command.id)))
