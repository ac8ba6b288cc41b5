"""Chunks: the samples of some steps of a segment as one row, one array a signal. Small ones, as
messages of few samples leave them, become one for each block of `CHUNK` steps.

Every step of a segment lies in one chunk. The steps of a message lie behind all that are stored of
their segment, and are a chunk of their own. Whoever writes holds the run's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sql
from numpy import arange, int64, ones, stack

from spikeguard_protocol import STANDARD_SIGNALS, BatchRange, EvenRanges, Samples
from spikeguard_protocol.identity import MAX_STEP
from spikeguard_server.store.curves import INT8, Column, Curves, Numbers, join, packed
from spikeguard_server.store.engine import Statement, ask
from spikeguard_server.store.tables.core import chunks, segments

AT_ONCE: Final = 20_000  # steps that are read to be written anew, at most or so
CHUNK: Final = 1024  # steps of a chunk that was put together from smaller ones, at most

EXTRAS = ("extra_names", "extra_values")
RANGES = ("even_first", "even_size", "batch_first", "batch_end")
COLUMNS: Final = ("steps", *STANDARD_SIGNALS, *EXTRAS, *RANGES)
_STANDARD: Final = frozenset(STANDARD_SIGNALS)
_WRITTEN: Final = ("run_id", "attempt", "segment", "first_step", "last_step", *COLUMNS)
WRITE_CHUNK: Final = f"""
INSERT INTO chunks ({", ".join(_WRITTEN)}) VALUES ({", ".join(f"%({name})s" for name in _WRITTEN)})
"""
_APPEND: Final = f"""
WITH segment AS (
    UPDATE segments SET first_step = least(first_step, %(first_step)s), last_step = %(last_step)s
    WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND segment = %(segment)s
)
{WRITE_CHUNK}
"""


class SegmentKey(NamedTuple):
    """A segment by the keys of the database."""

    run_id: UUID
    attempt: int
    segment: int


def appended(key: SegmentKey, samples: Samples) -> Statement:
    """The statement that stores steps which lie behind all others of their segment, which is
    there."""
    chunk = _chunk_of(samples.steps, samples.signals, samples.positions)
    return _APPEND, {**key._asdict(), **chunk}


def _chunk_of(
    steps: Sequence[int], signals: Mapping[str, Sequence[float | None]],
    positions: Sequence[BatchRange | None],
) -> dict[str, Any]:  # fmt: skip
    """What `WRITE_CHUNK` takes beside the key of the segment."""
    own = sorted(signals.keys() - _STANDARD)
    standard = {name: packed(values) for name, values in signals.items() if name in _STANDARD}
    chunk: dict[str, Any] = {**dict.fromkeys(COLUMNS), **standard}
    if own:
        chunk["extra_names"] = own
        chunk["extra_values"] = packed([v for name in own for v in signals[name]])
    if steps[-1] - steps[0] >= len(steps):
        chunk["steps"] = packed(steps, INT8)
    if even := EvenRanges.of(positions):  # of one size, one behind the other
        chunk["even_first"], chunk["even_size"] = even.first, even.size
    elif any(found is not None for found in positions):
        chunk["batch_first"] = packed([None if r is None else r.first for r in positions], INT8)
        chunk["batch_end"] = packed([None if r is None else r.end for r in positions], INT8)
    return {**chunk, "first_step": steps[0], "last_step": steps[-1]}


def read_curves(
    connection: sql.Connection,
    key: SegmentKey,
    first: int,
    last: int,
    names: Iterable[str] | None = None,
    most: int | None = None,
) -> Curves:
    """What is stored of steps [first, last]; `names`: of these signals only; `most`: so many of the
    newest."""
    rows = _read(connection, key, first, last, names, most or MAX_STEP, newest=most is not None)
    curves = join(map(_curves, rows)).between(first, last)
    return curves if most is None else curves.at(slice(max(0, len(curves) - most), None))


def curves_in_parts(
    connection: sql.Connection, key: SegmentKey, first: int, last: int, names: Iterable[str]
) -> Iterator[Curves]:
    """What is stored of steps [first, last], `AT_ONCE` or so at a time."""
    while first <= last and (rows := _read(connection, key, first, last, names, AT_ONCE)):
        yield join(map(_curves, rows)).between(first, last)
        first = rows[-1]["last_step"] + 1


# Chunks that hold any of [first, last], in order, of `limit` steps or so in all, the first or the
# last of them. A chunk names its steps where some are missing.
_CHUNKS: Final = """
SELECT {columns} FROM (
    SELECT c.*, coalesce(sum(coalesce(cardinality(steps), last_step - first_step + 1))
        FILTER (WHERE last_step <= %(last)s) OVER (
            ORDER BY first_step {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS before
    FROM chunks c WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND segment = %(segment)s
    AND last_step >= %(first)s AND first_step <= %(last)s
) AS found
WHERE before < %(limit)s ORDER BY first_step
"""


def _read(
    connection: sql.Connection,
    key: SegmentKey,
    first: int,
    last: int,
    names: Iterable[str] | None,
    limit: int,
    newest: bool = False,
) -> list[dict[str, Any]]:
    """The rows of `_CHUNKS`, with the columns that `names` need, by column."""
    columns = ["first_step", "last_step", *_wanted(names)]
    text = _CHUNKS.format(columns=", ".join(columns), order="DESC" if newest else "ASC")
    which = {**key._asdict(), "first": first, "last": last, "limit": limit}
    (rows,) = ask(connection, (text, which), prepare=False)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _wanted(names: Iterable[str] | None) -> Iterable[str]:
    if names is None:
        return COLUMNS
    wanted = set(names)
    extras = EXTRAS if wanted - _STANDARD else ()
    return ("steps", *filter(wanted.__contains__, STANDARD_SIGNALS), *extras, *RANGES)


def _curves(row: dict[str, Any]) -> Curves:
    if row["steps"] is None:
        steps: Numbers = arange(row["first_step"], row["last_step"] + 1, dtype=int64)
    else:
        steps = row["steps"][0]
    signals = {n: Column(*row[n]) for n in STANDARD_SIGNALS if row.get(n) is not None}
    if own := row.get("extra_names"):
        values, there = row["extra_values"]
        size = len(steps)
        for place, name in enumerate(own):
            part = slice(place * size, (place + 1) * size)
            signals[name] = Column(values[part], there[part])
    if row["even_first"] is not None:
        first = row["even_first"] + row["even_size"] * arange(len(steps), dtype=int64)
        end, there = first + row["even_size"], ones(len(steps), bool)
    elif row["batch_first"] is not None:
        (first, there), (end, _) = row["batch_first"], row["batch_end"]
    else:
        return Curves(steps, signals)
    return Curves(steps, signals, Column(stack((first, end), axis=1), there))


BLOCKS: Final = 64  # that are compacted at once
SMALL_CHUNKS: Final = 8  # so many in a block are left alone
_G: Final = segments.c
_BEGIN: Final = sql.func.coalesce(_G.compacted_to, _G.first_step // CHUNK * CHUNK)
_REACH: Final = (_G.last_step + 1) // CHUNK * CHUNK


def segments_behind(connection: sql.Connection, limit: int) -> list[SegmentKey]:
    """Segments that have gone past a block that is not compacted; read without a lock."""
    query = sql.select(_G.run_id, _G.attempt, _G.segment).where(_REACH > _BEGIN)
    return [SegmentKey(*row) for row in connection.execute(query.limit(limit))]


def compact(connection: sql.Connection, key: SegmentKey) -> None:
    """Compact the next blocks that the segment has gone past."""
    this = sql.and_(_G.run_id == key.run_id, _G.attempt == key.attempt, _G.segment == key.segment)
    begin, reach = connection.execute(sql.select(_BEGIN, _REACH).where(this)).one()
    if reach <= begin:
        return
    reach = min(reach, begin + BLOCKS * CHUNK)
    c = chunks.c
    mine = sql.and_(c.run_id == key.run_id, c.attempt == key.attempt, c.segment == key.segment)
    ends = sql.select(c.first_step, c.last_step).where(mine, c.last_step >= begin)
    found = connection.execute(ends.where(c.first_step < reach).order_by(c.first_step)).all()
    for block, inside in groupby(found, lambda chunk: chunk.first_step // CHUNK):
        small = [chunk for chunk in inside if chunk.last_step // CHUNK == block]
        if len(small) > SMALL_CHUNKS:
            first, last = small[0].first_step, small[-1].last_step
            together = read_curves(connection, key, first, last)
            gone = c.first_step.between(first, small[-1].first_step)
            connection.execute(sql.delete(chunks).where(mine, gone))
            signals = {n: v.list() for n, v in together.signals.items() if v.there.any()}
            chunk = _chunk_of(together.steps.tolist(), signals, together.ranges())
            ask(connection, (WRITE_CHUNK, {**key._asdict(), **chunk}))
    connection.execute(sql.update(segments).where(this).values(compacted_to=reach))
