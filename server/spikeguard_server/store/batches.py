"""What lay in the batches near an onset, between the agent's record and the database.

Law: told twice, stored once. Bounded: `RANKS` of a step, and of steps that no incident is near
those of the newest `KEPT_STEPS`, in whatever order a job tells of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.batch_evidence import NEAR
from spikeguard_protocol import BatchDetail, TokenHistogram, encode, from_json
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables.core import batch_details

RANKS: Final = 4  # that are kept of a step: rank 0 and the one with the highest loss are told
KEPT_STEPS: Final = 200  # that may turn out to lie near an onset
_KEY = "b.run_id = %(run_id)s AND b.attempt = %(attempt)s"
_WRITE = f"""
INSERT INTO batch_details (run_id, attempt, segment, step, rank, detail)
SELECT %(run_id)s::uuid, %(attempt)s::int, told.segment, told.step, told.rank, told.detail
FROM (
    SELECT first.*, row_number() OVER (PARTITION BY segment, step ORDER BY place) AS turn
    FROM (
        SELECT DISTINCT ON (segment, step, rank) *
        FROM unnest(
            %(segments)s::bigint[], %(steps)s::bigint[], %(ranks)s::bigint[], %(details)s::text[]
        ) WITH ORDINALITY AS sent (segment, step, rank, detail, place)
        ORDER BY segment, step, rank, place
    ) AS first
    WHERE NOT EXISTS (
        SELECT FROM batch_details AS b WHERE {_KEY} AND b.segment = first.segment
        AND b.step = first.step AND b.rank = first.rank
    )
) AS told
WHERE told.turn <= {RANKS} - (
    SELECT count(*) FROM batch_details AS b
    WHERE {_KEY} AND b.segment = told.segment AND b.step = told.step
)
"""
_PRUNE = f"""
DELETE FROM batch_details AS b WHERE b.run_id = %(run_id)s
AND (
    (b.attempt, b.segment) <= (%(attempt)s, %(segment)s)
    AND NOT (
        b.attempt = %(attempt)s AND b.segment = %(segment)s AND b.step > %(step)s - {KEPT_STEPS}
    )
    OR (b.attempt, b.segment, b.step, b.rank) < (
        SELECT k.attempt, k.segment, k.step, k.rank FROM batch_details AS k
        WHERE k.run_id = %(run_id)s
        ORDER BY k.attempt DESC, k.segment DESC, k.step DESC, k.rank DESC
        OFFSET {KEPT_STEPS * RANKS - 1} LIMIT 1
    )
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
    """Store what a message told of its steps, in one statement; the first of a rank and a step
    stands, and of a step the first `RANKS`."""
    values = {
        "run_id": run_id, "attempt": attempt,
        "segments": [detail.segment for detail in details],
        "steps": [detail.step for detail in details],
        "ranks": [detail.rank for detail in details],
        "details": [encode(_storable(detail)).decode() for detail in details],
    }  # fmt: skip
    connection.exec_driver_sql(_WRITE, values)


def prune_batches(
    connection: sql.Connection, run_id: UUID, attempt: int, newest: BatchDetail
) -> None:
    """Delete what no incident is near, but for the steps just before `newest`, and of what is told
    of later steps but for as many."""
    place = {"attempt": attempt, "segment": newest.segment, "step": newest.step}
    connection.exec_driver_sql(_PRUNE, {"run_id": run_id, **place})


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
    query = sql.select(_C.detail).where(mine, about).order_by(_C.step, _C.rank)
    return [from_json(BatchDetail, json.loads(text)) for text in connection.scalars(query)]


def _storable(detail: BatchDetail) -> BatchDetail:
    snippet = None if detail.snippet is None else storable(detail.snippet)
    names = tuple(map(storable, detail.names))
    return replace(detail, names=names, snippet=snippet, histogram=_said(detail.histogram))


def _said(histogram: TokenHistogram | None) -> TokenHistogram | None:
    if histogram is None:
        return None
    return replace(histogram, texts=tuple(map(storable, histogram.texts)))
