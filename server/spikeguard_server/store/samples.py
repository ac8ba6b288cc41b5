"""Samples and norms by layer, read back as the domain takes them; norms by layer are written here.

NaN and infinities are values like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.cause.layers import LayerRow
from spikeguard_protocol import LayerNorms
from spikeguard_protocol.messages import MAX_LAYERS, MAX_NAME
from spikeguard_server.store.chunks import (
    SegmentKey,
    heads,
    read_curves,
)
from spikeguard_server.store.curves import Curves
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.engine import Prepared, ask, write
from spikeguard_server.store.runs import SegmentRow, segments_of
from spikeguard_server.store.tables.core import incident_stretches


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


_WRITE_LAYERS = """
INSERT INTO layer_norms (run_id, attempt, segment, step, signal, names, norms)
VALUES (%(run_id)s, %(attempt)s, %(segment)s, %(step)s, %(signal)s, %(names)s, %(norms)s)
ON CONFLICT DO NOTHING
"""


def write_layer_norms(
    connection: sql.Connection, run_id: UUID, attempt: int, detail: LayerNorms
) -> None:
    """Store the detail of one step; the first one stands."""
    key = SegmentKey(run_id, attempt, detail.segment)
    said = {
        "step": detail.step, "signal": detail.signal[:64],
        "names": [name[-MAX_NAME:] for name in detail.norms],
        "norms": list(detail.norms.values()),
    }  # fmt: skip
    connection.exec_driver_sql(_WRITE_LAYERS, {**key._asdict(), **said})


_KEEP = """
INSERT INTO incident_stretches (run_id, incident, attempt, segment, first_step, last_step)
VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (run_id, incident, attempt, segment) DO UPDATE
SET last_step = greatest(incident_stretches.last_step, excluded.last_step)
"""
Stretch = tuple[int, int, int, int]  # attempt, segment, first step, last step


def keep_with_incident(
    connection: sql.Connection, run_id: UUID, incident: int, stretches: Iterable[Stretch]
) -> None:
    """Let the samples of `stretches` outlive the run's others; of a segment that the incident has
    already, those that follow."""
    write(connection, *((_KEEP, (run_id, incident, *stretch)) for stretch in stretches))


_K = incident_stretches.c
_KEPT = Prepared(
    sql.select(_K.attempt, _K.segment, _K.first_step, _K.last_step)
    .where(_K.run_id == sql.bindparam("key"), _K.incident == sql.bindparam("of"))
)  # fmt: skip


def kept_stretches(
    connection: sql.Connection, run_id: UUID, incident: int
) -> list[tuple[SegmentRow, int, int]]:
    """What is kept with an incident, in the order of training: segment, first and last step."""
    rows = _KEPT.rows(connection, key=run_id, of=incident)
    steps = {(r.attempt, r.segment): (r.first_step, r.last_step) for r in rows}
    found = segments_of(connection, run_id, places=steps)
    return [(segment, *steps[segment.attempt, segment.id.number]) for segment in found]


def kept_curves(
    connection: sql.Connection, run_id: UUID, incident: int, names: Iterable[str] | None = None
) -> list[tuple[SegmentRow, Curves]]:
    """The samples that are kept with an incident, in the order of training; `names`: of these
    signals only."""
    found = list[tuple[SegmentRow, Curves]]()
    for segment, first, last in kept_stretches(connection, run_id, incident):
        key = SegmentKey(run_id, segment.attempt, segment.id.number)
        if len(curves := read_curves(connection, key, first, last, names)):
            found.append((segment, curves))
    return found


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
