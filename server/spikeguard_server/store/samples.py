"""Samples, norms by layer and what lay in batches, read back as the domain takes them; the latter
two are written here.

NaN and infinities are values like any other. What is told twice is stored once. Of what lay in
batches the newest `MOST_KEPT` records stay of steps that no incident is near; of those near one as
many are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.diagnosis.cause.layers import LayerRow
from spikeguard_core.diagnosis.evidence import NEAR
from spikeguard_protocol import BatchDetail, LayerNorms, from_json, to_json
from spikeguard_protocol.messages import MAX_LAYERS, MAX_NAME
from spikeguard_server.store.chunks import SegmentKey, read_curves
from spikeguard_server.store.curves import Curves
from spikeguard_server.store.engine import ask, storable_json, write
from spikeguard_server.store.runs import SegmentRow, segments_of
from spikeguard_server.store.tables.core import batch_details, incident_stretches, layer_norms


def write_layer_norms(
    connection: sql.Connection, run_id: UUID, attempt: int, detail: LayerNorms
) -> None:
    """Store the detail of one step; the first one stands."""
    row = {
        "run_id": run_id, "attempt": attempt, "segment": detail.segment, "step": detail.step,
        "signal": detail.signal[:64], "names": [name[-MAX_NAME:] for name in detail.norms],
        "norms": list(detail.norms.values()),
    }  # fmt: skip
    connection.execute(insert(layer_norms).values(row).on_conflict_do_nothing())


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


def kept_stretches(
    connection: sql.Connection, run_id: UUID, incident: int
) -> list[tuple[SegmentRow, int, int]]:
    """What is kept with an incident, in the order of training: segment, first and last step."""
    mine = sql.select(incident_stretches).where(_K.run_id == run_id, _K.incident == incident)
    rows = connection.execute(mine)
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


def read_layers(
    connection: sql.Connection,
    run_id: UUID,
    place: tuple[int, int],
    before: tuple[int, int],
    after: tuple[int, int],
    signal: str | None = None,
) -> list[LayerRow]:
    """Norms by layer of the segment `place` (attempt, segment) around an onset. `before` and
    `after`: (step, rows), the newest rows before a step and the first from it on. `signal`: of this
    one only."""
    which = {"run_id": run_id, "attempt": place[0], "segment": place[1], "signal": signal}
    found = ask(
        connection,
        (_BEFORE, {**which, "step": before[0], "rows": before[1]}),
        (_AFTER, {**which, "step": after[0], "rows": after[1]}),
        prepare=False,  # or the connection keeps the rows, which are large, until it asks again
    )
    return list(_layers_of(sorted(chain(*found), key=itemgetter(0, 1))))


_NEAREST = """
SELECT step, signal, names, norms FROM layer_norms
WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND segment = %(segment)s
AND signal = coalesce(%(signal)s::text, signal) AND step {side} %(step)s
ORDER BY step {order}, signal LIMIT %(rows)s
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


MOST_KEPT: Final = 800  # of 400 steps: of each, rank 0 and the one with the highest loss are told
_PRUNE = f"""
DELETE FROM batch_details AS b WHERE b.run_id = %(run_id)s
AND (b.attempt, b.segment, b.step, b.rank) < (
    SELECT k.attempt, k.segment, k.step, k.rank FROM batch_details AS k
    WHERE k.run_id = %(run_id)s
    ORDER BY k.attempt DESC, k.segment DESC, k.step DESC, k.rank DESC OFFSET {MOST_KEPT - 1} LIMIT 1
)
AND NOT EXISTS (
    SELECT FROM incidents AS i WHERE i.run_id = b.run_id AND i.attempt = b.attempt
    AND i.segment = b.segment AND b.step BETWEEN i.onset_step - {NEAR} AND i.onset_step + {NEAR}
)
"""
_C = batch_details.c


def write_batches(
    connection: sql.Connection, run_id: UUID, attempt: int, details: Sequence[BatchDetail]
) -> None:
    """Store what a message told of its steps; the first of a rank and a step stands."""
    rows = [
        {
            "run_id": run_id, "attempt": attempt, "segment": detail.segment, "step": detail.step,
            "rank": detail.rank, "detail": json.dumps(storable_json(to_json(detail))),
        }
        for detail in details
    ]  # fmt: skip
    connection.execute(insert(batch_details).on_conflict_do_nothing(), rows)
    connection.exec_driver_sql(_PRUNE, {"run_id": run_id})


def read_batches(
    connection: sql.Connection,
    run_id: UUID,
    place: tuple[int, int],
    onset_step: int,
) -> list[BatchDetail]:
    """Of the segment `place` (attempt, segment) about an onset, by step and rank: at most `NEAR`
    steps from it."""
    about = _C.step.between(onset_step - NEAR, onset_step + NEAR)
    mine = (_C.run_id == run_id) & (_C.attempt == place[0]) & (_C.segment == place[1])
    query = sql.select(_C.detail).where(mine, about).order_by(_C.step, _C.rank).limit(MOST_KEPT)
    return [from_json(BatchDetail, json.loads(text)) for text in connection.scalars(query)]
