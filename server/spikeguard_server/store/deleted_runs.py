"""Deleted runs: everything of a run removed but its audit and its figures, and what a
later run of its name is made from; and what the fleet's counters count, of runs there are and were.

Whoever deletes holds the run's lock. The run itself and what refers to it go in one transaction;
its curves, which nothing refers to, go in small ones after it, and a deletion that was cut off
there is finished by housekeeping. A run that begins under the name again counts attempts, incidents
and detector versions on, so that no id, no key and no kept detector means two things.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.lifecycle.command_life import legal_events
from spikeguard_protocol import CommandState
from spikeguard_server.store.runs import RunRow
from spikeguard_server.store.tables.core import (
    attempts,
    audit,
    chunks,
    commands,
    deleted_runs,
    deleted_totals,
    detector_states,
    incidents,
    layer_norms,
    metadata,
)

CURVES: Final = (chunks, layer_norms)  # large
KEPT: Final = (audit, deleted_runs)
ROWS: Final = 500  # of curves, in one transaction
_D = deleted_runs.c


@dataclass(frozen=True, slots=True)
class Former:
    """What the newest deleted run of a name had come to."""

    attempts: int
    incidents: int
    detector_version: int


def former_run(connection: sql.Connection, run_id: UUID) -> Former | None:
    """The deleted run of this name; None if there never was one."""
    query = sql.select(_D.attempts, _D.incidents, _D.detector_version).where(_D.run_id == run_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else Former(*row)


def remove_run(connection: sql.Connection, run: RunRow, now: datetime) -> None:
    """Delete the locked run and everything that refers to it; its curves are still to be removed.

    Tables are found by their `run_id`, children first, so that a new one is not forgotten."""
    _remember(connection, run, now)
    keep_totals(connection, run.run_id)
    for table in reversed(metadata.tables.values()):
        if "run_id" in table.c and table not in (*CURVES, *KEPT):
            connection.execute(sql.delete(table).where(table.c.run_id == run.run_id))


def _remember(connection: sql.Connection, run: RunRow, now: datetime) -> None:
    s = detector_states.c
    version = connection.scalar(sql.select(s.version).where(s.run_id == run.run_id)) or 0
    before = former_run(connection, run.run_id)
    values = {
        "project": run.project, "name": run.name, "deleted_at": now, "attempts": run.attempts,
        "incidents": run.incidents, "curves_left": True,
        "detector_version": max(version, before.detector_version if before else 0),
    }  # fmt: skip
    connection.execute(
        insert(deleted_runs)
        .values(run_id=run.run_id, **values)
        .on_conflict_do_update(index_elements=["run_id"], set_=values)
    )


def runs_with_curves_left(connection: sql.Connection) -> list[UUID]:
    """Deleted runs of which samples are still there; read without a lock."""
    return list(connection.execute(sql.select(_D.run_id).where(_D.curves_left)).scalars())


def remove_curves(connection: sql.Connection, run_id: UUID) -> bool:
    """Delete some rows of a deleted run's curves; False once none is left."""
    former = former_run(connection, run_id)
    if former is None:
        return False
    for table in CURVES:
        if delete_some(connection, table, run_id, table.c.attempt <= former.attempts):
            return True
    connection.execute(
        sql.update(deleted_runs).where(_D.run_id == run_id).values(curves_left=False)
    )
    return False


def delete_some(
    connection: sql.Connection, table: sql.Table, run_id: UUID, which: sql.ColumnElement[bool]
) -> bool:
    """Delete `ROWS` rows of a run's curves at most; whether there were any."""
    key = [column for column in table.primary_key if column.name != "run_id"]
    some = sql.select(*key).where(table.c.run_id == run_id, which).limit(ROWS)
    gone = sql.delete(table).where(table.c.run_id == run_id, sql.tuple_(*key).in_(some))
    return bool(connection.execute(gone).rowcount)


# A counter that falls looks to Prometheus like one that began anew, and to an alert like good news.
_NONE: Final[sql.ColumnElement[str]] = sql.literal("", sql.Text)
FINAL: Final = tuple(state.value for state in CommandState if not legal_events(state))
_T = deleted_totals.c


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
    gone = sql.select(_T.first, _T.second, _T.count).where(_T.counter == counter.name)
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
                set_={"count": _T.count + added.excluded.count},
            )
        )
