"""Curves of a run: the samples of a window of steps, thinned where there are many.

Thinning keeps, of every signal in every stretch of steps, the lowest and the highest finite value
and the first one that is not finite; what is kept is kept as a whole sample, and no more samples
than were asked for, unless those of one stretch are. What is read is thinned part by part, so that
nothing a job sends makes a look at it take all memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import OPTIONAL_SIGNALS, STANDARD_SIGNALS
from spikeguard_protocol.identity import MAX_STEP, NAME_PATTERN
from spikeguard_server.errors import Unprocessable
from spikeguard_server.store.chunks import SegmentKey, curves_in_parts
from spikeguard_server.store.curves import Curves, join, keep
from spikeguard_server.store.reads.runs import MAX_SEGMENTS
from spikeguard_server.store.runs import RunRow, SegmentRow, current_line, run_row, segments_of
from spikeguard_server.store.samples import kept_stretches

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


_Span = tuple[SegmentRow, int, int]  # first and last step of a segment that lie in the window


def read_signals(text: str) -> tuple[str, ...]:
    """Read `loss,grad_norm`; raise `Unprocessable` for too many or for what is no name."""
    names = tuple(dict.fromkeys(filter(None, _LIST.split(text.strip()))))
    if not 1 <= len(names) <= MAX_SIGNALS or not all(map(NAME_PATTERN.fullmatch, names)):
        raise Unprocessable(
            f"Takes 1 to {MAX_SIGNALS} names of signals with commas between them",
            "Write signals=loss,grad_norm",
            field="signals",
        )
    return names


def refuse_unknown(window: Window, run: RunRow) -> None:
    """Raise `Unprocessable` where `run` sent none of the signals and no run sends them as such."""
    own: list[str] = json.loads(run.own_names or "[]")
    if {*STANDARD_SIGNALS, *OPTIONAL_SIGNALS, *own}.isdisjoint(window.signals):
        there = ", ".join([*STANDARD_SIGNALS, *own])
        raise Unprocessable(
            f"The run sent no signal called {', '.join(window.signals)}",
            f"Ask for some of {there}",
            field="signals",
        )


def read_series(
    connection: sql.Connection, run_id: UUID, window: Window, incident: int | None = None
) -> dict[str, Any]:
    """The curves of a run, or those that are kept with an incident, which outlive them."""
    newest = segments_of(connection, run_id, newest=MAX_SEGMENTS)
    line, spans = current_line(run_row(connection, run_id), newest), list[_Span]()
    if incident is None:
        found = [(segment, segment.first_step, segment.last_step) for segment in newest]
    else:
        found = [*kept_stretches(connection, run_id, incident)[-MAX_SEGMENTS:]]
    for segment, first, last in found:
        if first is None or last is None:
            continue
        first, last = max(first, window.first), min(last, window.last)
        if first <= last:
            spans.append((segment, first, last))
    total = sum(last - first + 1 for _, first, last in spans)
    stretches, truncated = [], False
    for span in spans:
        curves, thinned = _stretch(connection, run_id, span, window, total)
        truncated = truncated or thinned
        if len(curves.steps):
            current = span[0].id in line.last_steps
            stretches.append(_shown(span[0], current, curves, window))
    stretches.sort(key=itemgetter("current"), reverse=True)
    return {"signals": list(window.signals), "segments": stretches, "truncated": truncated}


def _stretch(
    connection: sql.Connection, run_id: UUID, span: _Span, window: Window, total: int
) -> tuple[Curves, bool]:
    """A segment's share of the window's points, where all spans have `total` steps, and whether
    samples were left out."""
    segment, first, last = span
    key = SegmentKey(run_id, segment.attempt, segment.id.number)
    names, steps = window.signals, last - first + 1
    points = max(2, window.points * steps // total) if total > window.points else steps
    width = -(-steps // max(1, points // (3 * len(names)) - 2))  # so many become three a signal
    curves, count = join(()), 0
    for part in curves_in_parts(connection, key, first, last, names):
        curves, count = join((curves, part)), count + len(part)
        if len(curves) > points:
            curves = curves.at(keep(curves, names, curves.steps // width))
    return curves, len(curves) < count


def _shown(entry: SegmentRow, current: bool, curves: Curves, window: Window) -> Mapping[str, Any]:
    nothing, values = [None] * len(curves), dict[str, list[Any]]()
    for name in window.signals:
        column = curves.signals.get(name)
        values[name] = nothing if column is None else column.list()
    return {
        "attempt": entry.id.attempt,
        "number": entry.id.number,
        "current": current,
        "steps": curves.steps.tolist(),
        "values": values,
        "batches": nothing if curves.batches is None else curves.batches.list(),
    }
