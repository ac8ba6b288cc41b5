"""Norms by layer around an onset, as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.cause.layers import LayerRow
from spikeguard_protocol.messages import MAX_LAYERS
from spikeguard_server.store.engine import ask

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
