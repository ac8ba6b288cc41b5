"""The causes of an incident and the layer that moved first, between its row and the domain.

Law: shapes only. Nulls are of incidents that were written before anybody asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.cause.layers import FirstLayer, LayerRow
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.suspicion import Mark, Ranking, Suspicion
from spikeguard_protocol import Cause
from spikeguard_protocol.messages import MAX_LAYERS
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables.core import layer_norms

MOST_NORMS = 100_000  # that are read at once: of 2,000 layers those of 48 steps

_LAYER = ("layer_signal", "layer_name", "layer_step", "layer_ratio", "layers_moved", "layers_known")


def ranking_of(row: Any) -> Ranking:
    """The ranking in a row of `incidents`."""
    said = (row.cause_reasons, row.cause_against)
    columns = (row.cause_names, row.cause_confidences, *said, _marks_of(row))
    return tuple(
        Suspicion(Cause(name), sure, tuple(reasons.splitlines()), mark, tuple(against.splitlines()))
        for name, sure, reasons, against, mark in zip(*columns, strict=True)
    )


def _marks_of(row: Any) -> Iterator[Mark | None]:
    """One for every cause."""
    columns = (
        row.cause_first_steps, row.cause_last_steps, row.cause_ratios, row.cause_ranks,
        row.cause_rates,
    )  # fmt: skip
    return (
        None if first is None else Mark(first, *rest) for first, *rest in zip(*columns, strict=True)
    )


def first_layer_of(row: Any) -> FirstLayer | None:
    """The layer in a row of `incidents`."""
    if row.layer_name is None:
        return None
    return FirstLayer(
        row.layer_signal, row.layer_name, row.layer_step, row.layer_ratio, row.layers_moved,
        row.layers_known, ahead=row.onset_step - row.layer_step,
    )  # fmt: skip


def explained_columns(incident: Incident) -> dict[str, Any]:
    """The columns that say why it began."""
    first = incident.first_layer
    layer = None
    if first is not None:
        what = (storable(first.signal), storable(first.layer))
        layer = (*what, first.step, first.ratio, first.moved, first.known)
    return {
        "cause_names": [one.cause.value for one in incident.causes],
        "cause_confidences": [one.confidence for one in incident.causes],
        "cause_reasons": [storable("\n".join(one.reasons)) for one in incident.causes],
        "cause_against": [storable("\n".join(one.against)) for one in incident.causes],
        **_mark_columns([one.mark for one in incident.causes]),
        **dict(zip(_LAYER, layer or [None] * len(_LAYER), strict=True)),
    }


def _mark_columns(marks: Sequence[Mark | None]) -> dict[str, Any]:
    return {
        "cause_first_steps": [None if mark is None else mark.first_step for mark in marks],
        "cause_last_steps": [None if mark is None else mark.last_step for mark in marks],
        "cause_ratios": [None if mark is None else mark.ratio for mark in marks],
        "cause_ranks": [None if mark is None else mark.rank for mark in marks],
        "cause_rates": [None if mark is None else mark.usual for mark in marks],
    }


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
    c = layer_norms.c
    mine = sql.and_(c.run_id == run_id, c.attempt == place[0], c.segment == place[1])
    mine = mine if signal is None else mine & (c.signal == signal)
    rows: Sequence[Any] = [
        *_nearest(connection, mine & (c.step < before[0]), c.step.desc(), before[1]),
        *_nearest(connection, mine & (c.step >= after[0]), c.step.asc(), after[1]),
    ]
    return list(_layers_of(sorted(rows, key=lambda row: (row.step, row.signal))))


def _layers_of(rows: Iterable[Any]) -> Iterator[LayerRow]:
    """As many layers of a signal as one step may tell of: whoever looks at them makes a table of
    layers by steps, which would be their product where each step tells of others."""
    known: dict[str, set[str]] = {}
    for row in rows:
        layers, norms = known.setdefault(row.signal, set()), dict[str, float]()
        for name, norm in zip(row.names, row.norms, strict=True):
            if name in layers or len(layers) < MAX_LAYERS:
                layers.add(name)
                norms[name] = norm
        yield LayerRow(row.step, row.signal, norms)


def _nearest(
    connection: sql.Connection,
    which: sql.ColumnElement[bool],
    order: sql.ColumnElement[Any],
    most: int,
) -> Sequence[Any]:
    """The first `most` rows, fewer where they hold more norms than anybody can look at."""
    c = layer_norms.c
    norms = sql.func.sum(sql.func.cardinality(c.norms)).over(order_by=(order, c.signal))
    near = sql.select(c.step, c.signal, c.names, c.norms, norms.label("so_far")).where(which)
    found = near.order_by(order, c.signal).limit(most).subquery()
    return connection.execute(sql.select(found).where(found.c.so_far <= MOST_NORMS)).all()
