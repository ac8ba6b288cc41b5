"""Batches that were left out, as the ranks reported them.

Law: told twice, stored once. The first stands, unless it had no names and a later one has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_protocol import BatchesSkipped
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables.skipped import skipped_batches

_C = skipped_batches.c
_INSERT = insert(skipped_batches)
_NEW = _INSERT.excluded
_STORE = _INSERT.execution_options(preserve_rowcount=True).on_conflict_do_update(
    index_elements=["run_id", "batch_first", "rank"],
    set_={
        name: _NEW[name]
        for name in ("batch_end", "attempt", "segment", "step", "command", "names", "names_cut")
    },
    where=sql.and_(sql.func.cardinality(_C.names) == 0, sql.func.cardinality(_NEW.names) > 0),
)


def store_skipped(
    connection: sql.Connection, run_id: UUID, records: Sequence[BatchesSkipped], now: datetime
) -> bool:
    """Keep what is new in `records`; whether anything was."""
    done = connection.execute(_STORE, [_columns(run_id, record, now) for record in records])
    return done.rowcount != 0


def _columns(run_id: UUID, record: BatchesSkipped, now: datetime) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "batch_first": record.batches.first,
        "batch_end": record.batches.end,
        "rank": record.rank,
        "attempt": record.point.segment.attempt,
        "segment": record.point.segment.number,
        "step": record.point.step,
        "command": record.command,
        "names": [storable(name) for name in record.names],
        "names_cut": record.names_cut,
        "told_at": now,
    }


def skipped_by(
    connection: sql.Connection, run_id: UUID, commands: Collection[str], most: int
) -> tuple[Sequence[sql.Row[Any]], int]:
    """What `commands` left out, by position: the first `most` rows, and how many there are."""
    mine = sql.and_(_C.run_id == run_id, _C.command.in_(commands))
    rows = connection.execute(
        sql.select(skipped_batches).where(mine).order_by(_C.batch_first, _C.rank).limit(most)
    ).all()
    count = connection.execute(
        sql.select(sql.func.count()).select_from(skipped_batches).where(mine)
    )
    return rows, count.scalar_one()
