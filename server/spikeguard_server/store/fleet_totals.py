"""What the fleet's counters count: of the runs that are there, and of those that were deleted.

A counter that falls looks to Prometheus like one that began anew, and to an alert like good news.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.lifecycle.command_life import legal_events
from spikeguard_protocol import CommandState
from spikeguard_server.store.tables.core import attempts, commands, deleted_totals, incidents

_NONE: Final[sql.ColumnElement[str]] = sql.literal("", sql.Text)
FINAL: Final = tuple(state.value for state in CommandState if not legal_events(state))
_D = deleted_totals.c


@dataclass(frozen=True, slots=True)
class _Counter:
    """Rows of a table, counted by up to two labels."""

    name: str
    table: sql.Table
    labels: tuple[sql.ColumnElement[Any], sql.ColumnElement[Any]]
    count: sql.ColumnElement[Any]
    where: sql.ColumnElement[bool]

    def query(self, *more: sql.ColumnElement[bool]) -> sql.Select[Any]:
        """(first label, second label, count) of the runs that are there."""
        counted = sql.select(*self.labels, self.count).select_from(self.table)
        return counted.where(self.where, *more).group_by(*self.labels)


_DROPPED = attempts.c.dropped_samples
CLOSED: Final = _Counter(
    "closed", incidents, (incidents.c.kind, incidents.c.outcome), sql.func.count(),
    incidents.c.outcome.is_not(None),
)  # fmt: skip
FINISHED: Final = _Counter(
    "finished", commands, (commands.c.verb, commands.c.state), sql.func.count(),
    commands.c.state.in_(FINAL),
)  # fmt: skip
DROPPED: Final = _Counter("dropped", attempts, (_NONE, _NONE), sql.func.sum(_DROPPED), _DROPPED > 0)


def read_total(connection: sql.Connection, counter: _Counter) -> dict[tuple[str, str], int]:
    """(first label, second label) -> count, of all runs that there ever were."""
    gone = sql.select(_D.first, _D.second, _D.count).where(_D.counter == counter.name)
    found: dict[tuple[str, str], int] = {}
    for query in (counter.query(), gone):
        for first, second, count in connection.execute(query):
            found[first, second] = found.get((first, second), 0) + int(count)
    return found


def keep_totals(connection: sql.Connection, run_id: UUID) -> None:
    """Add what the counters have of a run to what they have of deleted ones, before it goes."""
    for counter in (CLOSED, FINISHED, DROPPED):
        mine = counter.query(counter.table.c.run_id == run_id).subquery()
        name: sql.ColumnElement[str] = sql.literal(counter.name, sql.Text)
        added = insert(deleted_totals).from_select(
            ["counter", "first", "second", "count"], sql.select(name, *mine.c)
        )
        connection.execute(
            added.on_conflict_do_update(
                index_elements=["counter", "first", "second"],
                set_={"count": _D.count + added.excluded.count},
            )
        )
