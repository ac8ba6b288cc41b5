"""Samples and norms by layer, read back as the domain takes them; norms by layer are written here.

NaN and infinities are values like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any
from uuid import UUID

import numpy as np
import sqlalchemy as sql

from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.cause.layers import LayerRow
from spikeguard_protocol import STANDARD_SIGNALS, BatchRange, LayerNorms
from spikeguard_protocol.messages import MAX_LAYERS, MAX_NAME
from spikeguard_server.store.chunks import (
    WEEK,
    SegmentKey,
    heads,
    read_curves,
    row_of,
)
from spikeguard_server.store.curves import Column, Curves
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.engine import ask, write
from spikeguard_server.store.packing import PackedArray, packed, whole_numbers
from spikeguard_server.store.stored_text import storable

MEASURED = (*STANDARD_SIGNALS, "extra_names", "extra_values", "batch_first", "batch_end")


def read_samples(
    connection: sql.Connection,
    run_id: UUID,
    attempt: int,
    segment: int,
    first: int,
    last: int,
) -> list[Sample]:
    """The stored samples of steps [first, last] of a segment, in order."""
    return read_curves(connection, SegmentKey(run_id, attempt, segment), first, last).samples()


def newest_samples(
    connection: sql.Connection, run_id: UUID, place: Place, first: int, most: int
) -> list[Sample]:
    """The newest `most` stored samples of steps from `first` to those of `place`, in order."""
    key = SegmentKey(run_id, place.attempt, place.segment)
    begin, seen = place.step, 0
    for head in reversed(heads(connection, key, first, place.step)):
        begin, seen = head.first, seen + (head.steps if head.last <= place.step else 0)
        if seen >= most:
            break
    curves = read_curves(connection, key, max(first, begin), place.step)
    return curves.at(slice(max(0, len(curves) - most), None)).samples()


def sample_of(row: Any, own: Collection[str]) -> Sample:
    """A stored row, of `samples` or `incident_samples`, as the domain sees it; of the job's own
    signals those called as in `own`."""
    fields = row._mapping
    values = {n: v for n in STANDARD_SIGNALS if (v := fields[n]) is not None}
    extras = zip(row.extra_names or (), row.extra_values or (), strict=True)
    values.update((name, value) for name, value in extras if value is not None and name in own)
    known = row.batch_first is not None
    return Sample(row.step, values, BatchRange(row.batch_first, row.batch_end) if known else None)


_WRITE_LAYERS = f"""
INSERT INTO layer_norms (run_id, attempt, segment, step, signal, week, names, norms)
SELECT %(run_id)s::uuid, %(attempt)s::int, %(segment)s::bigint, %(step)s::bigint, %(signal)s::text,
       {WEEK}, %(names)s::text[], %(norms)s::float8[]
ON CONFLICT DO NOTHING
"""


def write_layer_norms(
    connection: sql.Connection, run_id: UUID, attempt: int, detail: LayerNorms
) -> None:
    """Store the detail of one step; the first one stands."""
    key = SegmentKey(run_id, attempt, detail.segment)
    said = {
        "step": detail.step, "signal": storable(detail.signal)[:64],
        "names": [storable(name)[-MAX_NAME:] for name in detail.norms],
        "norms": list(detail.norms.values()),
    }  # fmt: skip
    connection.exec_driver_sql(_WRITE_LAYERS, {**key._asdict(), **said})


_STANDARD = ", ".join(f"%({name}_column)s::float8[]" for name in STANDARD_SIGNALS)
_COPY = f"""
INSERT INTO incident_samples (run_id, incident, attempt, segment, step, {", ".join(MEASURED)})
SELECT %(run_id)s::uuid, %(incident)s::int, %(attempt)s::int, %(segment)s::bigint, s.step,
       {", ".join(f"s.{name}" for name in STANDARD_SIGNALS)}, %(extra_names_column)s::text[],
       (%(own)s::float8[])[(s.place - 1) * %(width)s + 1 : s.place * %(width)s],
       s.batch_first, s.batch_end
FROM unnest(%(steps)s::bigint[], {_STANDARD}, %(firsts)s::bigint[], %(ends)s::bigint[])
WITH ORDINALITY AS s(step, {", ".join(STANDARD_SIGNALS)}, batch_first, batch_end, place)
ON CONFLICT DO NOTHING
"""


def copy_to_incident(
    connection: sql.Connection, run_id: UUID, incident: int,
    places: Iterable[tuple[int, int, int, int]],
) -> None:  # fmt: skip
    """Keep the samples of each (attempt, segment, first, last) with the incident."""
    joined = list[tuple[int, int, int, int]]()
    for attempt, segment, first, last in sorted(places):
        if joined and joined[-1][:2] == (attempt, segment) and first <= joined[-1][3] + 1:
            first, last = joined[-1][2], max(last, joined.pop()[3])
        joined.append((attempt, segment, first, last))
    for attempt, segment, first, last in joined:
        key = SegmentKey(run_id, attempt, segment)
        if len(curves := read_curves(connection, key, first, last)):
            kept = {**key._asdict(), "incident": incident, **_kept_row(curves)}
            write(connection, (_COPY, kept))


def _kept_row(curves: Curves) -> dict[str, Any]:
    """What `_COPY` takes of samples: the values of a step's own signals lie side by side."""
    row = row_of(curves)
    own = [curves.signals[name] for name in row["extra_names_column"] or ()]
    beside = None
    if own:
        values, there = zip(*((column.values, column.there) for column in own), strict=True)
        beside = Column(np.stack(values, 1).ravel(), np.stack(there, 1).ravel())
    return {
        **row, "steps": whole_numbers(curves.steps.tolist()), "firsts": _packed(curves.first),
        "ends": _packed(curves.end), "own": _packed(beside), "width": len(own),
    }  # fmt: skip


def _packed(column: Column | None) -> PackedArray | None:
    return None if column is None else packed(column.values, column.there)


MOST_NORMS = 100_000  # that are read at once: of 2,000 layers those of 48 steps


def read_layers(
    connection: sql.Connection,
    run_id: UUID,
    place: tuple[int, int],
    before: tuple[int, int],
    after: tuple[int, int],
    signal: str | None = None,
) -> list[LayerRow]:
    """Norms by layer of the segment `place` (attempt, segment) around an onset.

    `before` and `after`: (step, rows), the newest rows before a step and the first from it on, of
    each as many as hold `MOST_NORMS`. `signal`: of this one only.
    """
    which = {"run_id": run_id, "attempt": place[0], "segment": place[1], "signal": signal}
    found = ask(
        connection,
        (_BEFORE, {**which, "step": before[0], "rows": before[1]}),
        (_AFTER, {**which, "step": after[0], "rows": after[1]}),
        prepare=False,  # or the connection keeps the rows, which are large, until it asks again
    )
    return list(_layers_of(sorted(chain(*found), key=itemgetter(0, 1))))


# The first rows, fewer where they hold more norms than anybody can look at.
_NEAREST = f"""
SELECT step, signal, names, norms FROM (
    SELECT *, sum(cardinality(norms)) OVER (ORDER BY step {{order}}, signal) AS so_far
    FROM layer_norms
    WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND segment = %(segment)s
    AND signal = coalesce(%(signal)s::text, signal) AND step {{side}} %(step)s
    ORDER BY step {{order}}, signal LIMIT %(rows)s
) AS found
WHERE so_far <= {MOST_NORMS}
"""
_BEFORE, _AFTER = (
    _NEAREST.format(side=side, order=order) for side, order in (("<", "DESC"), (">=", "ASC"))
)


def _layers_of(rows: Iterable[Any]) -> Iterator[LayerRow]:
    """As many layers of a signal as one step may tell of: whoever looks at them makes a table of
    layers by steps, which would be their product where each step tells of others."""
    known: dict[str, set[str]] = {}
    for step, signal, names, (values, _) in rows:
        layers, norms = known.setdefault(signal, set()), dict[str, float]()
        for name, norm in zip(names, values.tolist(), strict=True):
            if name in layers or len(layers) < MAX_LAYERS:
                layers.add(name)
                norms[name] = norm
        yield LayerRow(step, signal, norms)
