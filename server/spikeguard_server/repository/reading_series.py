"""Curves: the samples of a window of steps, thinned in the database where there are many.

Law: thinning keeps, of every signal in every stretch of steps, the lowest and the highest finite
value and every non-finite one; what is kept is kept as a whole sample. A run of a million steps
never travels here: one pass finds the steps to keep, a second one fetches them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_protocol import STANDARD_SIGNALS
from spikeguard_protocol.identity import MAX_STEP, NAME_PATTERN
from spikeguard_server.errors import Unprocessable
from spikeguard_server.repository.reading import (
    SegmentRow,
    current_line,
    read_segments,
)
from spikeguard_server.tables import incident_samples, samples

MAX_SIGNALS = 16  # a call
MAX_POINTS = 20_000
_LIST = re.compile(r"\s*,\s*")


@dataclass(frozen=True, slots=True)
class Window:
    """Which curves are asked for: steps in [first, last], `points` samples at most or so."""

    signals: tuple[str, ...]
    first: int = 0
    last: int = MAX_STEP
    points: int = 2000

    @property
    def buckets(self) -> int:
        """How many stretches a minimum and a maximum of each signal are kept of."""
        return max(1, self.points // (2 * len(self.signals)))


def read_signals(text: str) -> tuple[str, ...]:
    """Read `loss,grad_norm`; raise `Unprocessable` for too many or for what is no name."""
    names = tuple(dict.fromkeys(part for part in _LIST.split(text.strip()) if part))
    if not 1 <= len(names) <= MAX_SIGNALS or not all(map(NAME_PATTERN.fullmatch, names)):
        raise Unprocessable(
            f"Takes 1 to {MAX_SIGNALS} names of signals with commas between them",
            "Write signals=loss,grad_norm",
            field="signals",
        )
    return names


def read_series(connection: sql.Connection, run_id: UUID, window: Window) -> dict[str, Any]:
    """The curves of a run."""
    return _series(connection, samples, samples.c.run_id == run_id, run_id, window)


def read_incident_series(
    connection: sql.Connection, run_id: UUID, incident: int, window: Window
) -> dict[str, Any]:
    """The curves around an incident, from the copy that outlives the run's samples."""
    mine = (incident_samples.c.run_id == run_id) & (incident_samples.c.incident == incident)
    steps = incident_samples.c.step
    ends = sql.select(sql.func.min(steps), sql.func.max(steps)).where(mine)
    first, last = connection.execute(ends).one()
    if first is not None:
        window = replace(window, first=max(window.first, first), last=min(window.last, last))
    return _series(connection, incident_samples, mine, run_id, window)


def _series(
    connection: sql.Connection,
    table: sql.Table,
    mine: sql.ColumnElement[bool],
    run_id: UUID,
    window: Window,
) -> dict[str, Any]:
    found = read_segments(connection, run_id)
    line = current_line(connection, run_id, found)
    spans = {(e.attempt, e.id.number): _span(e, window) for e in found}
    total = sum(spans.values())
    stretches, truncated = [], False
    for entry in found:
        if span := spans[entry.attempt, entry.id.number]:
            here = sql.and_(
                mine, table.c.attempt == entry.attempt, table.c.segment == entry.id.number
            )
            rows, thinned = _stretch(connection, table, here, window, span, total)
            truncated = truncated or thinned
            if rows:
                stretches.append(_columns(entry, entry.id in line.last_steps, rows, window))
    stretches.sort(key=lambda stretch: not stretch["current"])
    return {"signals": list(window.signals), "segments": stretches, "truncated": truncated}


def _span(entry: SegmentRow, window: Window) -> int:
    """How many steps of a segment lie in the window, at most."""
    if entry.row.first_step is None or entry.row.last_step is None:
        return 0
    first, last = max(entry.row.first_step, window.first), min(entry.row.last_step, window.last)
    return max(0, int(last - first + 1))


def _stretch(
    connection: sql.Connection,
    table: sql.Table,
    here: sql.ColumnElement[bool],
    window: Window,
    span: int,
    total: int,
) -> tuple[Sequence[Any], bool]:
    """The samples of one segment, and whether some were left out."""
    inside = sql.and_(here, table.c.step.between(window.first, window.last))
    query = sql.select(
        table.c.step, table.c.batch_first, table.c.batch_end, *_values(table, window)
    )
    if total <= window.points:
        return connection.execute(query.where(inside).order_by(table.c.step)).all(), False
    buckets = max(1, window.buckets * span // total)
    kept, count = _kept_steps(connection, table, inside, window, -(-span // buckets))
    chosen = sql.or_(
        table.c.step == sql.any_(sql.literal(kept, sql.ARRAY(sql.BigInteger))),
        *(_not_finite(_value(table, name)) for name in window.signals),
    )
    rows = connection.execute(query.where(inside, chosen).order_by(table.c.step)).all()
    return rows, len(rows) < count


def _kept_steps(
    connection: sql.Connection,
    table: sql.Table,
    inside: sql.ColumnElement[bool],
    window: Window,
    width: int,
) -> tuple[list[int], int]:
    """The steps of the extremes in every `width` steps, both ends, and how many there were."""
    values = [_value(table, name) for name in window.signals]
    steps = [extreme for value in values for extreme in _extremes(value, table.c.step)]
    bucket = table.c.step // width
    query = sql.select(
        sql.func.count(), sql.func.min(table.c.step), sql.func.max(table.c.step), *steps
    )
    kept: set[int] = set()
    count, ends = 0, []
    for row in connection.execute(query.where(inside).group_by(bucket)):
        count += row[0]
        ends += [row[1], row[2]]
        kept |= {int(pair[1]) for pair in row[3:] if pair is not None}
    return sorted(kept | {min(ends, default=0), max(ends, default=0)}), count


def _extremes(
    value: sql.ColumnElement[Any], step: sql.ColumnElement[Any]
) -> list[sql.ColumnElement[Any]]:
    """(value, step) where `value` is lowest and highest, non-finite ones aside.

    Arrays compare by their first entry, then by their second.
    """
    pair = postgresql.array([value, sql.cast(step, sql.Double)])
    finite = sql.not_(_not_finite(value)) & value.is_not(None)
    return [extreme(pair).filter(finite) for extreme in (sql.func.min, sql.func.max)]


def _not_finite(value: sql.ColumnElement[Any]) -> sql.ColumnElement[bool]:
    """NaN and infinities; Postgres holds NaN to be above everything and equal to itself."""
    infinity = sql.cast(sql.literal_column("'Infinity'"), sql.Double)
    return (value >= infinity) | (value <= -infinity)


def _values(table: sql.Table, window: Window) -> list[sql.ColumnElement[Any]]:
    return [_value(table, name).label(f"v{i}") for i, name in enumerate(window.signals)]


def _value(table: sql.Table, name: str) -> sql.ColumnElement[Any]:
    """A signal's column, or its place among those that the user added."""
    if name in STANDARD_SIGNALS:
        return table.c[name]
    place = sql.func.array_position(table.c.extra_names, sql.literal(name, sql.Text))
    return table.c.extra_values[place]


def _columns(
    entry: SegmentRow, current: bool, rows: Sequence[Any], window: Window
) -> Mapping[str, Any]:
    return {
        "attempt": entry.id.attempt,
        "number": entry.id.number,
        "current": current,
        "steps": [row[0] for row in rows],
        "values": {name: [row[3 + i] for row in rows] for i, name in enumerate(window.signals)},
        "batches": [None if row[1] is None else [row[1], row[2]] for row in rows],
    }
