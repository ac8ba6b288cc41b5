"""Compaction: small chunks, as messages of few samples leave them, become one for each block of
`CHUNK` steps, once their segment has gone past it. Whoever calls holds the run's lock.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

import sqlalchemy as sql

from spikeguard_server.store.chunks import (
    CHUNK,
    SegmentKey,
    delete_chunks,
    heads,
    read_curves,
    row_of,
    write_of,
)
from spikeguard_server.store.engine import ask
from spikeguard_server.store.tables.core import segments

HEADS: Final = 256  # chunks that are read at once
SMALL_CHUNKS: Final = 8  # so many in a block are left alone


def segments_behind(connection: sql.Connection, limit: int) -> list[SegmentKey]:
    """Segments that have gone past a block that is not compacted; read without a lock."""
    c = segments.c
    done = sql.func.coalesce(c.compacted_to, c.first_step // CHUNK * CHUNK)
    query = sql.select(c.run_id, c.attempt, c.segment)
    behind = (c.last_step + 1) // CHUNK * CHUNK > done
    return [SegmentKey(*row) for row in connection.execute(query.where(behind).limit(limit))]


def compact(connection: sql.Connection, key: SegmentKey) -> None:
    """Compact the next blocks that the segment has gone past."""
    c = segments.c
    this = sql.and_(c.run_id == key.run_id, c.attempt == key.attempt, c.segment == key.segment)
    query = sql.select(c.first_step, c.last_step, c.compacted_to).where(this)
    row = connection.execute(query).one()
    if row.last_step is None:
        return
    begin = row.first_step // CHUNK * CHUNK if row.compacted_to is None else row.compacted_to
    reach = (row.last_step + 1) // CHUNK * CHUNK
    if reach <= begin:
        return
    found = heads(connection, key, begin, reach - 1, HEADS)
    if len(found) == HEADS:  # of the last block there may be more
        reach = max(found[-1].first // CHUNK * CHUNK, begin + CHUNK)
        found = heads(connection, key, begin, reach - 1)
    for block, chunks in groupby(found, lambda head: head.first // CHUNK):
        inside = [head for head in chunks if head.last // CHUNK == block]
        if len(inside) > SMALL_CHUNKS:
            first, last = inside[0].first, inside[-1].last
            together = read_curves(connection, key, first, last)
            delete_chunks(connection, key, first, inside[-1].first)
            ask(connection, write_of(key, row_of(together)))
    connection.execute(sql.update(segments).where(this).values(compacted_to=reach))
