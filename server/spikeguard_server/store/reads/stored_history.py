"""The stored samples of a run for a replay: segment by segment, those given up included.

Law: reads only; the newest steps, and never more of them than were asked for.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import (
    OPTIONAL_SIGNALS,
    STANDARD_SIGNALS,
    Medium,
    SegmentId,
    SegmentPoint,
)
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.store.chunks import SegmentKey, read_curves
from spikeguard_server.store.reads.history import read_segments
from spikeguard_server.store.tables.core import attempts, runs, targets

SIGNALS: Final = (*STANDARD_SIGNALS, *OPTIONAL_SIGNALS)
CHECKPOINTS: Final = 50  # newest, by which the distance of two is told


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """The newest stored samples of a segment."""

    id: SegmentId
    parent: SegmentPoint | None
    samples: list[Sample]


def read_stored_segments(
    connection: sql.Connection, run_id: UUID, steps: int
) -> list[StoredSegment]:
    """The newest `steps` stored steps, oldest segment first."""
    found: list[StoredSegment] = []
    for entry in reversed(read_segments(connection, run_id)):
        if steps <= 0:
            break
        first, last = entry.row.first_step, entry.row.last_step
        if first is None or last is None:
            continue
        first = max(first, last - steps + 1)
        steps -= last - first + 1
        key = SegmentKey(run_id, entry.attempt, entry.id.number)
        curves = read_curves(connection, key, first, last, SIGNALS)
        found.append(StoredSegment(entry.id, entry.parent, curves.samples()))
    return found[::-1]


def checkpoints_apart(connection: sql.Connection, run_id: UUID) -> int | None:
    """How many steps lie between two checkpoints, as a rule; None where that cannot be told."""
    c = targets.c
    on_disk = sql.select(c.step).where(c.run_id == run_id, c.medium == Medium.DISK.value)
    newest = on_disk.distinct().order_by(c.step.desc()).limit(CHECKPOINTS)
    saved = sorted(connection.execute(newest).scalars())
    gaps = [later - earlier for earlier, later in pairwise(saved)]
    return round(statistics.median(gaps)) if gaps else None


def tokens_per_step(connection: sql.Connection, run_id: UUID) -> int | None:
    """Tokens of a step of the newest attempt."""
    a = attempts.c
    current = (a.run_id == runs.c.run_id) & (a.number == runs.c.current_attempt)
    query = sql.select(a.tokens_per_step).select_from(attempts.join(runs, current))
    return connection.scalar(query.where(runs.c.run_id == run_id))
