"""Shared by reads of a run's history: pages, attempts by their ids, the line of history.

Law: reads only, one statement each; nothing here locks, and nothing decides.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.lineage import Lineage, lineage_of
from spikeguard_protocol import RunId, SegmentId, SegmentPoint
from spikeguard_server.errors import NotFound, Unprocessable
from spikeguard_server.store.tables.core import attempts, run_key, runs, segments
from spikeguard_server.store.tables.run_counts import deleted_runs

MAX_LIMIT = 1000
MAX_SEGMENTS = 1000  # of a run, that are shown
Row = sql.Row[Any]
Reader = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class PageWanted:
    """Which part of a list is asked for."""

    limit: int
    after: tuple[Any, ...] | None = None  # the key of the last entry that was seen


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """A segment with its attempt's number and id."""

    id: SegmentId
    attempt: int  # number of the attempt within the run
    parent: SegmentPoint | None
    row: Row


def newest_first(
    query: sql.Select[Any], key: tuple[sql.ColumnElement[Any], ...], page: PageWanted
) -> sql.Select[Any]:
    """As many rows as a page may show and one more, newest first; `key` begins with a time."""
    if page.after is not None:
        query = query.where(key[0] <= page.after[0], sql.tuple_(*key) < page.after)
    return query.order_by(*(column.desc() for column in key)).limit(page.limit + 1)


def write_cursor(key: Sequence[Any]) -> str:
    """A place in a list, opaque to the caller."""
    plain = json.dumps([str(part) for part in key]).encode()
    return base64.urlsafe_b64encode(plain).decode().rstrip("=")


def read_cursor(cursor: str | None, readers: Sequence[Reader]) -> tuple[Any, ...] | None:
    """The key that `write_cursor` wrote; raise `Unprocessable` for anything else."""
    if cursor is None:
        return None
    try:
        plain = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return tuple(read(part) for read, part in zip(readers, plain, strict=True))
    except (ValueError, TypeError, AttributeError):
        raise Unprocessable(
            "This cursor was not made by this list",
            "Take `next_cursor` from the page before, as it stands",
            field="cursor",
        ) from None


def existing_run(connection: sql.Connection, run: RunId) -> UUID:
    """The key of a run that exists; raise `NotFound` otherwise."""
    key = run_key(run)
    if connection.scalar(sql.select(runs.c.run_id).where(runs.c.run_id == key)) is None:
        raise NotFound(f"There is no run {run}", "`spikeguard runs` lists those there are")
    return key


def recorded_run(connection: sql.Connection, run: RunId) -> UUID:
    """The key of a run that exists or was deleted; raise `NotFound` otherwise."""
    key = run_key(run)
    deleted = sql.select(deleted_runs.c.run_id).where(deleted_runs.c.run_id == key)
    if connection.scalar(deleted) is not None:
        return key
    return existing_run(connection, run)


def read_segments(connection: sql.Connection, run_id: UUID) -> list[SegmentLine]:
    """The newest segments of a run, oldest first. Who looks at the run is shown each of them."""
    newest = _segments(run_id).limit(MAX_SEGMENTS)
    return [_segment(row) for row in reversed(connection.execute(newest).all())]


def named_segments(
    connection: sql.Connection, run_id: UUID, places: Collection[tuple[int, int]]
) -> list[SegmentLine]:
    """The segments of these attempts and numbers, however old, oldest first."""
    here = sql.tuple_(segments.c.attempt, segments.c.segment).in_(places)
    found = connection.execute(_segments(run_id).where(here)).all()
    return [_segment(row) for row in reversed(found)]


def _segments(run_id: UUID) -> sql.Select[Any]:
    return (
        sql.select(segments, attempts.c.id)
        .join(
            attempts,
            sql.and_(
                attempts.c.run_id == segments.c.run_id, attempts.c.number == segments.c.attempt
            ),
        )
        .where(segments.c.run_id == run_id)
        .order_by(segments.c.attempt.desc(), segments.c.segment.desc())
    )


def current_line(connection: sql.Connection, run_id: UUID, found: Sequence[SegmentLine]) -> Lineage:
    """The path from the root to the segment that is trained now."""
    here = sql.select(runs.c.current_attempt, runs.c.current_segment)
    now = connection.execute(here.where(runs.c.run_id == run_id)).one()
    for entry in found:
        if (entry.attempt, entry.id.number) == tuple(now):
            return lineage_of({other.id: other.parent for other in found}, entry.id)
    return Lineage({})


def read_point(row: Row) -> SegmentPoint | None:
    """The parent that a row of attempts or segments names."""
    if row.parent_attempt is None:
        return None
    return SegmentPoint(SegmentId(row.parent_attempt, row.parent_segment), row.parent_step)


def _segment(row: Row) -> SegmentLine:
    return SegmentLine(SegmentId(row.id, row.segment), row.attempt, read_point(row), row)
