"""What lay in the batches near an onset, between the agent's record and the database.

Told twice, stored once. Of steps that no incident is near the newest `KEPT` records stay; of those
near one as many are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.batch_evidence import NEAR
from spikeguard_protocol import BatchDetail, from_json, to_json
from spikeguard_server.store.engine import storable_json
from spikeguard_server.store.tables.core import batch_details

KEPT: Final = 800  # of 400 steps: of each, rank 0 and the one with the highest loss are told
_WRITE = """
INSERT INTO batch_details (run_id, attempt, segment, step, rank, detail)
SELECT %(run_id)s, %(attempt)s, * FROM unnest(
    %(segments)s::bigint[], %(steps)s::bigint[], %(ranks)s::bigint[], %(details)s::text[]
)
ON CONFLICT DO NOTHING
"""
_PRUNE = f"""
DELETE FROM batch_details AS b WHERE b.run_id = %(run_id)s
AND (b.attempt, b.segment, b.step, b.rank) < (
    SELECT k.attempt, k.segment, k.step, k.rank FROM batch_details AS k
    WHERE k.run_id = %(run_id)s
    ORDER BY k.attempt DESC, k.segment DESC, k.step DESC, k.rank DESC OFFSET {KEPT - 1} LIMIT 1
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
    values = {
        "run_id": run_id, "attempt": attempt,
        "segments": [detail.segment for detail in details],
        "steps": [detail.step for detail in details],
        "ranks": [detail.rank for detail in details],
        "details": [json.dumps(storable_json(to_json(detail))) for detail in details],
    }  # fmt: skip
    connection.exec_driver_sql(_WRITE, values)
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
    query = sql.select(_C.detail).where(mine, about).order_by(_C.step, _C.rank).limit(KEPT)
    return [from_json(BatchDetail, json.loads(text)) for text in connection.scalars(query)]
