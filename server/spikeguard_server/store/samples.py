"""Samples: written a record at a time, read back as the domain takes them.

Law: a value that is stored stays. A step that comes again only fills in what was not measured
before, as far as a message has room to write stored values anew. NaN and infinities are values like
any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import sqlalchemy as sql

from spikeguard_protocol import STANDARD_SIGNALS, BatchRange, LayerNorms, Samples
from spikeguard_protocol.messages import MAX_NAME, MAX_STEPS
from spikeguard_server.domain.detection.sample import Sample, SampleColumns
from spikeguard_server.store.chunks import (
    AT_ONCE,
    CHUNK,
    ChunkHead,
    SegmentKey,
    chunk_of,
    delete_chunks,
    heads,
    insert_chunk,
    newest_begin,
    read_curves,
    row_of,
    week_of,
)
from spikeguard_server.store.curves import Curves, curves_of, merge_curves
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.roll_ups import unroll
from spikeguard_server.store.runs import lengthen_segment
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables import core as tables

MEASURED = (*STANDARD_SIGNALS, "extra_names", "extra_values", "batch_first", "batch_end")


class Written(NamedTuple):
    """What it took to store a record, and what there was no room for."""

    values: int = 0  # stored ones that were read and written anew
    left_out: int = 0  # steps


# A record of two steps can touch megabytes of what is stored; a message has a thousand records.
MOST_REWRITTEN: Final = 4_000_000  # values of a message, 0.5 s of a core
READ_VALUES: Final = 5_000  # what one read and its writes cost more than their values
HEAD_VALUES: Final = 10  # and a chunk that is looked at and left as it is


def write_samples(
    connection: sql.Connection,
    run_id: UUID,
    attempt: int,
    samples: Samples,
    room: int = MOST_REWRITTEN,
) -> Written:
    """Store every step of `samples`; of those that lie among what is stored as many as `room`
    values, written anew, allow."""
    key = SegmentKey(run_id, attempt, samples.segment)
    if samples.steps[0] > _newest(connection, key):
        insert_chunk(connection, key, chunk_of(samples))
        return Written()
    if room <= 0:
        return Written(left_out=len(samples.steps))
    return _fill_in(connection, key, curves_of(samples), room)


def append_samples(
    connection: sql.Connection, run_id: UUID, attempt: int, samples: Samples
) -> None:
    """Store steps that lie behind all others of their segment, which is there; waits for nothing
    of its own."""
    key = SegmentKey(run_id, attempt, samples.segment)
    insert_chunk(connection, key, chunk_of(samples))
    lengthen_segment(connection, *key, samples.steps[0], samples.steps[-1])


def _newest(connection: sql.Connection, key: SegmentKey) -> int:
    c = tables.segments.c
    which = sql.and_(c.run_id == key.run_id, c.attempt == key.attempt, c.segment == key.segment)
    step = connection.execute(sql.select(c.last_step).where(which)).scalar_one_or_none()
    return -1 if step is None else int(step)


def _fill_in(connection: sql.Connection, key: SegmentKey, fresh: Curves, room: int) -> Written:
    """Merge steps into the chunks that hold, or could hold, any of them."""
    first, last = int(fresh.steps[0]), int(fresh.steps[-1])
    unroll(connection, key, first)
    found = heads(connection, key, first, last)
    if not found:
        _insert(connection, key, fresh)
        return Written()
    values, left_out = HEAD_VALUES * len(found), 0
    for begin, end, part in _parts(found, fresh):
        if part.steps[-1] >= begin:
            if values >= room:
                left_out += len(part)
                continue
            stored = read_curves(connection, key, begin, end)
            values += READ_VALUES + len(stored) * max(1, len(stored.signals))
            delete_chunks(connection, key, begin, end)
            part = merge_curves(stored, part)
        _insert(connection, key, part)
    return Written(values, left_out)


def _parts(found: Sequence[ChunkHead], fresh: Curves) -> Iterator[tuple[int, int, Curves]]:
    """(first step, last step) of chunks that are read at once, and the steps of `fresh` that they
    hold or that lie before the next chunk. Chunks that none lies in are left as they are, but for
    short ones in between: it takes longer to read twice."""
    firsts = np.array([head.first for head in found])
    of_step = np.maximum(np.searchsorted(firsts, fresh.steps, "right") - 1, 0)
    hit, begins = np.unique(of_step, return_index=True)
    before = np.cumsum([0, *(head.steps for head in found)])  # steps of the chunks before each
    first = 0
    for n in range(1, len(hit) + 1):
        if n < len(hit):
            between = before[hit[n]] - before[hit[n - 1] + 1]
            together = before[hit[n] + 1] - before[hit[first]]
            if between <= CHUNK and together <= AT_ONCE:
                continue
        end = begins[n] if n < len(hit) else len(fresh)
        part = fresh.at(slice(begins[first], end))
        yield found[hit[first]].first, found[hit[n - 1]].last, part
        first = n


def _insert(connection: sql.Connection, key: SegmentKey, curves: Curves) -> None:
    for part in curves.cut(CHUNK):
        insert_chunk(connection, key, row_of(part))


def as_domain(samples: Samples) -> SampleColumns:
    """The same samples as the domain takes them."""
    return SampleColumns(samples.steps, samples.signals, samples.positions)


def read_samples(
    connection: sql.Connection,
    run_id: UUID,
    attempt: int,
    segment: int,
    first: int,
    last: int,
) -> list[Sample]:
    """The stored samples of steps [first, last] of a segment, in order."""
    return read_curves(connection, SegmentKey(run_id, attempt, segment), first, last).samples()


def newest_samples(
    connection: sql.Connection, run_id: UUID, place: Place, first: int, most: int
) -> list[Sample]:
    """The newest `most` stored samples of steps from `first` to those of `place`, in order."""
    key = SegmentKey(run_id, place.attempt, place.segment)
    begin = newest_begin(connection, key, first, place.step, most)
    if begin is None:
        return []
    curves = read_curves(connection, key, max(first, begin), place.step)
    return curves.at(slice(max(0, len(curves) - most), None)).samples()


def sample_of(row: Any, own: Collection[str]) -> Sample:
    """A stored row, of `samples` or `incident_samples`, as the domain sees it; of the job's own
    signals those called as in `own`."""
    fields = row._mapping
    values = {n: v for n in STANDARD_SIGNALS if (v := fields[n]) is not None}
    extras = zip(row.extra_names or (), row.extra_values or (), strict=True)
    values.update((name, value) for name, value in extras if value is not None and name in own)
    known = row.batch_first is not None
    return Sample(row.step, values, BatchRange(row.batch_first, row.batch_end) if known else None)


_WRITE_LAYERS = f"""
INSERT INTO layer_norms (run_id, attempt, segment, step, signal, week, names, norms)
SELECT %(run_id)s::uuid, %(attempt)s::int, %(segment)s::bigint, %(step)s::bigint, %(signal)s::text,
       {week_of("layers")}, %(names)s::text[], %(norms)s::float8[]
ON CONFLICT DO NOTHING
"""


def write_layer_norms(
    connection: sql.Connection, run_id: UUID, attempt: int, detail: LayerNorms
) -> None:
    """Store the detail of one step; the first one stands."""
    key = SegmentKey(run_id, attempt, detail.segment)
    said = {
        "step": detail.step, "signal": storable(detail.signal)[:64],
        "names": [storable(name)[-MAX_NAME:] for name in detail.norms],
        "norms": list(detail.norms.values()),
    }  # fmt: skip
    connection.exec_driver_sql(_WRITE_LAYERS, {**key._asdict(), **said})


# With an incident are kept: the first samples of each segment, and so many in all. Its post-mortem
# is made of all of them at once, and nothing else bounds how long it stays open.
KEPT_OF_SEGMENT: Final = 10_000
KEPT: Final = 40_000
_KEPT_NOW = """
SELECT attempt, segment, count(*) AS kept FROM incident_samples
WHERE run_id = %(run_id)s AND incident = %(incident)s GROUP BY attempt, segment
"""
# One pass over each chunk: an array that is stored out of line is read whole for each element that
# is asked of it.
_COPY = f"""
INSERT INTO incident_samples (run_id, incident, attempt, segment, step, {", ".join(MEASURED)})
SELECT p.run_id, %(incident)s::int, p.attempt, p.segment, s.step,
       {", ".join(f"s.{name}" for name in STANDARD_SIGNALS)}, p.extra_names, s.own::float8[],
       coalesce(s.batch_first, p.even_first + (s.place - 1) * p.even_size),
       coalesce(s.batch_end, p.even_first + s.place * p.even_size)
FROM (
    SELECT c.*, sum(coalesce(cardinality(c.steps), c.last_step - c.first_step + 1)) OVER (
        ORDER BY c.first_step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before, cardinality(c.extra_values) / cardinality(c.extra_names) AS size
    FROM chunks c
    WHERE c.run_id = %(run_id)s AND c.attempt = %(attempt)s AND c.segment = %(segment)s
    AND c.last_step >= %(first)s AND c.first_step <= %(last)s
) p
CROSS JOIN LATERAL (
    SELECT array_agg(row.own ORDER BY row.place) AS own FROM (
        SELECT (u.n - 1) %% p.size AS place, array_agg(u.value ORDER BY u.n)::text AS own
        FROM unnest(p.extra_values) WITH ORDINALITY AS u(value, n) GROUP BY 1
    ) AS row
) AS own
CROSS JOIN LATERAL unnest(
    coalesce(p.steps, ARRAY(SELECT generate_series(p.first_step, p.last_step))),
    {", ".join(f"p.{name}" for name in STANDARD_SIGNALS)}, p.batch_first, p.batch_end, own.own
) WITH ORDINALITY AS s(step, {", ".join(STANDARD_SIGNALS)}, batch_first, batch_end, own, place)
WHERE coalesce(p.before, 0) < %(room)s + {MAX_STEPS}
AND s.step BETWEEN %(first)s AND %(last)s
ORDER BY s.step LIMIT %(room)s
ON CONFLICT DO NOTHING
"""


def copy_to_incident(
    connection: sql.Connection,
    run_id: UUID,
    incident: int,
    places: Sequence[tuple[int, int, int, int]],
) -> None:
    """Keep the samples of each (attempt, segment, first, last) with the incident, as far as there
    is room for them."""
    if not places:
        return
    mine = {"run_id": run_id, "incident": incident}
    rows = connection.exec_driver_sql(_KEPT_NOW, mine)
    kept = defaultdict(int, {(row.attempt, row.segment): row.kept for row in rows})
    for attempt, segment, first, last in _joined(places):
        of_segment = KEPT_OF_SEGMENT - kept[attempt, segment]
        room = min(KEPT - sum(kept.values()), of_segment)
        if room <= 0:
            continue
        which = {"attempt": attempt, "segment": segment, "first": first, "last": last}
        done = connection.exec_driver_sql(_COPY, {**mine, **which, "room": room})
        kept[attempt, segment] += done.rowcount


def _joined(places: Iterable[tuple[int, int, int, int]]) -> Iterator[tuple[int, int, int, int]]:
    """The same steps, those of a segment that overlap or follow one another as one stretch."""
    found: tuple[int, int, int, int] | None = None
    for place in sorted(places):
        if found is not None and place[:2] == found[:2] and place[2] <= found[3] + 1:
            found = (*found[:3], max(found[3], place[3]))
            continue
        if found is not None:
            yield found
        found = place
    if found is not None:
        yield found
