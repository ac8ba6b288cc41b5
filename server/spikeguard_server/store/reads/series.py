"""Curves of a run: the samples of a window of steps, thinned where there are many.

Law: thinning keeps, of every signal in every stretch of steps, the lowest and the highest finite
value and the first one that is not finite; what is kept is kept as a whole sample, and never more
samples than were asked for. Where a stretch is as wide as what a roll-up tells apart, roll-ups are
read in place of samples, so that a run of a million steps is never read whole. What is read is
thinned part by part, so that nothing a job sends makes a look at it take all memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import STANDARD_SIGNALS, SegmentId
from spikeguard_protocol.identity import MAX_STEP, NAME_PATTERN
from spikeguard_server.errors import Unprocessable
from spikeguard_server.store.chunks import (
    AT_ONCE,
    MOST_BLOCKS,
    SegmentKey,
    curves_in_parts,
    read_curves,
    rollup_across,
    rollups_in_parts,
    short_segments,
)
from spikeguard_server.store.curves import Column, Curves, join, keep
from spikeguard_server.store.pipeline import ask
from spikeguard_server.store.reads.history import (
    MAX_SEGMENTS,
    SegmentLine,
    current_line,
    named_segments,
    read_segments,
)
from spikeguard_server.store.roll_ups import BLOCK, SPAN

MAX_SIGNALS = 16  # a call
MAX_POINTS = 20_000
GROUP: Final = AT_ONCE // SPAN  # short segments that are read at once
_LIST = re.compile(r"\s*,\s*")


@dataclass(frozen=True, slots=True)
class Window:
    """Which curves are asked for: steps in [first, last], `points` samples at most or so."""

    signals: tuple[str, ...]
    first: int = 0
    last: int = MAX_STEP
    points: int = 2000


class _Source(NamedTuple):
    """A segment's row, and what is stored of it where that was read with others."""

    connection: sql.Connection
    key: SegmentKey
    row: Any
    ready: Curves | None


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
    found = read_segments(connection, run_id)
    line = current_line(connection, run_id, found)
    spans = {(e.attempt, e.id.number): _span(e, window) for e in found}
    total = sum(spans.values())
    shown, truncated = dict[SegmentId, Mapping[str, Any]](), False
    measured = [entry for entry in found if spans[entry.attempt, entry.id.number]]
    for entry, ready in _with_short_ones(connection, run_id, measured, window.signals):
        span = spans[entry.attempt, entry.id.number]
        points = max(2, window.points * span // total) if total > window.points else span
        key = SegmentKey(run_id, entry.attempt, entry.id.number)
        blocks = max(2, MOST_BLOCKS * span // total)
        source = _Source(connection, key, entry.row, ready)
        curves, thinned = _stretch(source, window, points, blocks)
        truncated = truncated or thinned
        if len(curves):
            shown[entry.id] = _shown(entry, entry.id in line.last_steps, curves, window)
    stretches = [shown[entry.id] for entry in found if entry.id in shown]
    stretches.sort(key=lambda stretch: not stretch["current"])
    return {"signals": list(window.signals), "segments": stretches, "truncated": truncated}


def _with_short_ones(
    connection: sql.Connection,
    run_id: UUID,
    found: Sequence[SegmentLine],
    names: tuple[str, ...],
) -> Iterator[tuple[SegmentLine, Curves | None]]:
    """Each segment, a short one with all that is stored of it: many of them in one statement, since
    a run may have a thousand, and no more at once than is read of a long one."""
    yield from ((entry, None) for entry in found if not _is_short(entry))
    short = [entry for entry in found if _is_short(entry)]
    for begin in range(0, len(short), GROUP):
        entries = short[begin : begin + GROUP]
        keys = [SegmentKey(run_id, entry.attempt, entry.id.number) for entry in entries]
        ready = short_segments(connection, keys, names)
        yield from zip(entries, (ready[key] for key in keys), strict=True)


def _is_short(entry: SegmentLine) -> bool:
    """Whether its samples are read, never its roll-ups where there are samples."""
    return bool(entry.row.last_step - entry.row.first_step < SPAN)


def read_incident_series(
    connection: sql.Connection, run_id: UUID, incident: int, window: Window
) -> dict[str, Any]:
    """The curves around an incident, from the copy that outlives the run's samples."""
    line = current_line(connection, run_id, read_segments(connection, run_id))
    copies = dict([*_copies(connection, run_id, incident, window).items()][-MAX_SEGMENTS:])
    named = named_segments(connection, run_id, copies)
    found = {(entry.attempt, entry.id.number): entry for entry in named}
    total, stretches, truncated = sum(map(len, copies.values())), [], False
    for place, copy in copies.items():
        points = max(2, window.points * len(copy) // total)
        if len(copy) > points:
            span = int(copy.steps[-1] - copy.steps[0]) + 1
            width = max(1, -(-span * 2 * len(window.signals) // points))
            copy, truncated = _thinned(copy, window.signals, points, width), True
        entry = found[place]
        stretches.append(_shown(entry, entry.id in line.last_steps, copy, window))
    stretches.sort(key=lambda stretch: not stretch["current"])
    return {"signals": list(window.signals), "segments": stretches, "truncated": truncated}


def _copies(
    connection: sql.Connection, run_id: UUID, incident: int, window: Window
) -> dict[tuple[int, int], Curves]:
    """What is kept with an incident, by attempt and segment."""
    values = [
        name
        if name in STANDARD_SIGNALS
        else f"extra_values[array_position(extra_names, %(own_{place})s::text)]"
        for place, name in enumerate(window.signals)
    ]
    arrays = ("step", "batch_first", "batch_end", *values)
    columns = ", ".join(f"array_agg({column} ORDER BY step)" for column in arrays)
    statement = (
        f"""SELECT attempt, segment, {columns} FROM incident_samples
        WHERE run_id = %(run_id)s AND incident = %(incident)s
        AND step BETWEEN %(first)s AND %(last)s
        GROUP BY attempt, segment ORDER BY attempt, segment""",
        {
            "run_id": run_id, "incident": incident, "first": window.first, "last": window.last,
            **{f"own_{place}": name for place, name in enumerate(window.signals)},
        },
    )  # fmt: skip
    (rows,) = ask(connection, statement, prepare=False)
    return {
        (attempt, segment): Curves(
            steps[0],
            {n: Column(*each) for n, each in zip(window.signals, measured, strict=True)},
            Column(*first),
            Column(*end),
        )
        for attempt, segment, steps, first, end, *measured in rows
    }


def _span(entry: SegmentLine, window: Window) -> int:
    """How many steps of a segment lie in the window, at most."""
    if entry.row.first_step is None or entry.row.last_step is None:
        return 0
    first, last = max(entry.row.first_step, window.first), min(entry.row.last_step, window.last)
    return max(0, int(last - first + 1))


def _stretch(source: _Source, window: Window, points: int, blocks: int) -> tuple[Curves, bool]:
    """At most `points` samples of a segment, and whether some were left out."""
    row = source.row
    first, last = max(window.first, row.first_step), min(window.last, row.last_step)
    span = last - first + 1
    width = -(-span // max(1, points // (2 * len(window.signals))))
    curves, count = _read(source, (first, last), width, window.signals, blocks)
    if len(curves) > points:
        curves = _thinned(curves, window.signals, points, width)
    return curves, len(curves) < count


def _read(
    source: _Source, steps: tuple[int, int], width: int, names: tuple[str, ...], blocks: int
) -> tuple[Curves, int]:
    """The samples of [first, last], or their extremes where `width` steps become one stretch, and
    how many samples there are. `blocks`: of so many roll-ups at most, the newest."""
    connection, key, row, ready = source
    first, last = steps
    begin = -(-first // BLOCK) * BLOCK if first > row.first_step else first  # a block's beginning
    end = min((last + 1) // BLOCK * BLOCK, row.rolled_to or 0)
    if width < SPAN or end <= begin:
        parts = (
            curves_in_parts(connection, key, first, last, names)
            if ready is None
            else [ready.between(first, last)]
        )
        curves, count = _joined(((part, len(part)) for part in parts), names, width, order=1)
        if count or not row.rolled_to:
            return curves, count
        begin, end = first, last + 1  # the samples are gone
    over = rollup_across(connection, key, begin)  # one of several blocks
    since = begin if over is None else over.first
    newest_first = rollups_in_parts(connection, key, since, end - 1, names, blocks)
    found, count = _joined(newest_first, names, width, order=-1)
    middle = found.between(begin, end - 1)
    count -= len(found) - len(middle)
    before = read_curves(connection, key, first, begin - 1, names)
    after = read_curves(connection, key, end, last, names)
    return join([before, middle, after]), len(before) + count + len(after)


def _joined(
    parts: Iterable[tuple[Curves, int]], names: tuple[str, ...], width: int, *, order: int
) -> tuple[Curves, int]:
    """Parts as one, and how many samples they stand for; thinned on the way where there is more
    than one. `order`: 1 for the oldest first, -1 for the newest first."""
    found, count = list[Curves](), 0
    for curves, samples in parts:
        if found:
            found[-1] = found[-1].at(keep(found[-1], names, found[-1].steps // width))
        found.append(curves)
        count += samples
    return join(found[::order]), count


def _thinned(curves: Curves, names: tuple[str, ...], points: int, width: int) -> Curves:
    """At most `points` of the samples, the extremes of every `width` steps or more among them."""
    kept = keep(curves, names, curves.steps // width)
    while len(kept) > max(points, 2 + 2 * len(names)):
        width *= 2
        kept = keep(curves, names, curves.steps // width)
    return curves.at(kept)


def _shown(entry: SegmentLine, current: bool, curves: Curves, window: Window) -> Mapping[str, Any]:
    columns = {name: curves.signals.get(name) for name in window.signals}
    nothing = [None] * len(curves)
    return {
        "attempt": entry.id.attempt,
        "number": entry.id.number,
        "current": current,
        "steps": curves.steps.tolist(),
        "values": {name: nothing if c is None else c.list() for name, c in columns.items()},
        "batches": [None if r is None else [r.first, r.end] for r in curves.ranges()],
    }
