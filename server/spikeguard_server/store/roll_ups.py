"""Roll-ups: the extremes of every block of steps, for reading a long run quickly.

Law: a block is rolled up once its segment has gone past it, and anew when something in it changes.
Blocks that hold few samples have one roll-up together, or each would be larger than what it stands
for. What is kept of a block is kept as whole samples. Small chunks are put together on the way.
Whoever calls holds the run's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import sqlalchemy as sql

from spikeguard_server.store.chunks import (
    COLUMNS,
    VALUES,
    ChunkHead,
    SegmentKey,
    delete_chunks,
    heads,
    in_parts,
    read_curves,
    rollup_across,
    row_of,
    week_of,
    write_of,
)
from spikeguard_server.store.curves import Curves, keep
from spikeguard_server.store.engine import ask
from spikeguard_server.store.tables.core import segments
from spikeguard_server.store.tables.samples import rollups, weeks

BLOCK: Final = 1024  # steps
SPAN: Final = 256  # steps of which each signal's extremes are kept
HEADS: Final = 256  # chunks that are read at once
SMALL_CHUNKS: Final = 8  # so many in a block are left alone

_WRITE = f"""
INSERT INTO rollups (run_id, attempt, segment, first_step, week, last_step, count,
                     {", ".join(COLUMNS)})
SELECT %(run_id)s::uuid, %(attempt)s::int, %(segment)s::bigint, %(first)s::bigint,
       {week_of("rollups")}, %(last)s::bigint, %(count)s::int, {VALUES}
"""
_REACHED = """
UPDATE segments SET rolled_to = %(reach)s
WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND segment = %(segment)s
"""


def segments_behind(connection: sql.Connection, limit: int) -> list[SegmentKey]:
    """Segments that have gone past a block that is not rolled up; read without a lock."""
    c = segments.c
    done = sql.func.coalesce(c.rolled_to, _floor(c.first_step))
    query = sql.select(c.run_id, c.attempt, c.segment).where(_floor(c.last_step + 1) > done)
    return [SegmentKey(*row) for row in connection.execute(query.limit(limit))]


def segments_unfinished(connection: sql.Connection, week: object, limit: int) -> list[SegmentKey]:
    """Segments of a week with steps that no roll-up stands for."""
    c = segments.c
    behind = c.last_step.is_not(None) & (sql.func.coalesce(c.rolled_to, -1) <= c.last_step)
    query = sql.select(c.run_id, c.attempt, c.segment).where(c.week == week, behind)
    return [SegmentKey(*row) for row in connection.execute(query.limit(limit))]


def _floor(step: sql.ColumnElement[int]) -> sql.ColumnElement[int]:
    return step // BLOCK * BLOCK


def roll_up(connection: sql.Connection, key: SegmentKey, *, whole: bool = False) -> bool:
    """Roll up what the segment has gone past (`whole`: all of it); False if there is more to do."""
    c = segments.c
    row = connection.execute(
        sql.select(c.first_step, c.last_step, c.rolled_to).where(_is(key))
    ).one()
    if row.last_step is None:
        return True
    begin = row.first_step // BLOCK * BLOCK if row.rolled_to is None else row.rolled_to
    end = row.last_step + 1 if whole else (row.last_step + 1) // BLOCK * BLOCK
    if end <= begin:
        return True
    found = heads(connection, key, begin, end - 1, HEADS)
    reach = min(_reach(found, begin, end), end)
    if reach < end:  # of the last block there may be more
        found = heads(connection, key, begin, reach - 1)
    blocks = _blocks(read_curves(connection, key, begin, reach - 1))
    rows = [(_WRITE, {**key._asdict(), **_rolled(block)}) for block in blocks]
    ask(connection, *rows, (_REACHED, {**key._asdict(), "reach": reach}))
    for block in blocks:
        _put_together(connection, key, block, found)
    return bool(reach == end)


def _reach(found: Sequence[ChunkHead], begin: int, end: int) -> int:
    """Where the blocks end that can be rolled up at once, of `HEADS` chunks from `begin` on."""
    first = next(in_parts(found), ())
    beyond = found[len(first)] if len(first) < len(found) else None
    if beyond is None and len(found) == HEADS:
        beyond = found[-1]
    return end if beyond is None else max(beyond.first // BLOCK * BLOCK, begin + BLOCK)


def unroll(connection: sql.Connection, key: SegmentKey, step: int) -> None:
    """Something at `step` or after it changes: what stood for it counts no more."""
    c, block = rollups.c, step // BLOCK * BLOCK
    if _samples_dropped(connection, key):
        return  # the roll-ups are all there is of them
    if (over := rollup_across(connection, key, block)) is not None:
        block = over.first // BLOCK * BLOCK
    which = sql.and_(c.run_id == key.run_id, c.attempt == key.attempt, c.segment == key.segment)
    connection.execute(sql.delete(rollups).where(which, c.last_step >= block))
    stale = sql.and_(_is(key), segments.c.rolled_to > block)
    connection.execute(sql.update(segments).where(stale).values(rolled_to=block))


def _samples_dropped(connection: sql.Connection, key: SegmentKey) -> bool:
    """Whether the week of the segment was let go."""
    week = sql.select(segments.c.week).where(_is(key)).scalar_subquery()
    dropped = weeks.c.samples_dropped_at.is_not(None)
    return connection.scalar(sql.select(dropped).where(weeks.c.starts == week)) or False


def _is(key: SegmentKey) -> sql.ColumnElement[bool]:
    c = segments.c
    return sql.and_(c.run_id == key.run_id, c.attempt == key.attempt, c.segment == key.segment)


def _blocks(curves: Curves) -> Sequence[Curves]:
    """What is rolled up together: a block, or neighbours with `SPAN` samples at most in all."""
    numbers = curves.steps // BLOCK
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(curves)]
    begins = [0]
    for begin, end in pairwise(bounds):
        if begin > begins[-1] and end - begins[-1] > SPAN:
            begins.append(begin)
    return [curves.at(slice(a, b)) for a, b in pairwise([*begins, len(curves)]) if b > a]


def _rolled(block: Curves) -> dict[str, Any]:
    """What is kept of a block."""
    kept = block.at(keep(block, block.signals, block.steps // SPAN))
    return {**row_of(kept), "count": len(block)}


def _put_together(
    connection: sql.Connection, key: SegmentKey, block: Curves, found: Sequence[ChunkHead]
) -> None:
    """Make one chunk of many small ones of `found` that lie within the block or blocks."""
    first, end = int(block.steps[0]) // BLOCK * BLOCK, (int(block.steps[-1]) // BLOCK + 1) * BLOCK
    inside = [head for head in found if head.first >= first and head.last < end]
    if len(inside) > SMALL_CHUNKS:
        delete_chunks(connection, key, inside[0].first, inside[-1].first)
        together = block.between(inside[0].first, inside[-1].last)
        ask(connection, write_of(key, row_of(together)))
