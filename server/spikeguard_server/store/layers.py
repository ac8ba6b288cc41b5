"""Norms by layer around an onset, as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.cause.layers import LayerRow
from spikeguard_protocol.messages import MAX_LAYERS
from spikeguard_server.store.tables.core import layer_norms

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
    c = layer_norms.c
    mine = sql.and_(c.run_id == run_id, c.attempt == place[0], c.segment == place[1])
    mine = mine if signal is None else mine & (c.signal == signal)
    rows = connection.execute(
        sql.union_all(
            _nearest(mine & (c.step < before[0]), c.step.desc(), before[1]),
            _nearest(mine & (c.step >= after[0]), c.step.asc(), after[1]),
        )
    )
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
    which: sql.ColumnElement[bool], order: sql.ColumnElement[Any], most: int
) -> sql.Select[Any]:
    """The first `most` rows, fewer where they hold more norms than anybody can look at."""
    c = layer_norms.c
    norms = sql.func.sum(sql.func.cardinality(c.norms)).over(order_by=(order, c.signal))
    near = sql.select(c.step, c.signal, c.names, c.norms, norms.label("so_far")).where(which)
    found = near.order_by(order, c.signal).limit(most).subquery()
    return sql.select(found).where(found.c.so_far <= MOST_NORMS)
