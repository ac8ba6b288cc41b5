"""The newest steps of a run as columns, and what was worked out of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final
from uuid import UUID

import numpy as np
import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.stability.score import Columns, Floats, Stability
from spikeguard_core.stability.trends import Trend
from spikeguard_server.store.chunks import SegmentKey, read_curves
from spikeguard_server.store.curves import Column, join
from spikeguard_server.store.runs import ENDED
from spikeguard_server.store.tables.core import runs, segments
from spikeguard_server.store.tables.run_stability import run_stability

MOST_SEGMENTS: Final = 64  # the newest
EVERY, EVERY_MOST, EVERY_PART = 100, 500, 20  # steps between two times; a part of the run's own
STEPS: Final = "steps"  # the column of step numbers
_S = run_stability.c


def runs_moved_on(connection: sql.Connection, limit: int) -> Sequence[Any]:
    """(run_id, project, last_step) of runs that trained on since they were looked at, the furthest
    first; of those that ended whatever they trained."""
    last = runs.c.last_step
    moved = sql.func.abs(last - sql.func.coalesce(_S.step, 0))
    due = sql.func.greatest(EVERY, sql.func.least(EVERY_MOST, last / EVERY_PART))
    query = (
        sql.select(runs.c.run_id, runs.c.project, last)
        .select_from(runs.outerjoin(run_stability, _S.run_id == runs.c.run_id))
        .where(last.is_not(None), (moved >= due) | ((runs.c.state == ENDED) & (_S.step != last)))
        .order_by(moved.desc())
    )
    return connection.execute(query.limit(limit)).all()


def newest_columns(
    connection: sql.Connection, run_id: UUID, names: Iterable[str], most: int
) -> Columns:
    """The newest `most` steps or so in the order of their training, those that were undone among
    them; their numbers as `steps`."""
    c, parts, count = segments.c, [], 0
    newest = sql.select(c.attempt, c.segment, c.first_step, c.last_step).where(
        c.run_id == run_id, c.last_step.is_not(None)
    )
    newest = newest.order_by(c.attempt.desc(), c.segment.desc()).limit(MOST_SEGMENTS)
    for row in connection.execute(newest).all():
        first = max(row.first_step, row.last_step - (most - count) + 1)
        key = SegmentKey(run_id, row.attempt, row.segment)
        parts.append(read_curves(connection, key, first, row.last_step, names))
        count += len(parts[-1])
        if count >= most:
            break
    found = join(reversed(parts))
    columns = {name: _plain(column) for name, column in found.signals.items()}
    return {STEPS: found.steps.astype(float), **columns}


def _plain(column: Column) -> Floats:
    values = np.where(np.isnan(column.values), np.inf, column.values)
    return np.where(column.there, values, np.nan)


def write_stability(
    connection: sql.Connection,
    run_id: UUID,
    step: int,
    stability: Stability | None,
    trends: Iterable[Trend],
) -> None:
    """Put it in the place of what was known; nothing where the run is gone."""
    values = {
        "step": step,
        "stability": sql.null() if stability is None else asdict(stability),
        "trends": [{**asdict(each), "sentence": each.sentence} for each in trends],
    }
    here = sql.select(runs.c.run_id).where(runs.c.run_id == run_id).with_for_update(key_share=True)
    if connection.execute(here).one_or_none() is None:
        return
    connection.execute(
        insert(run_stability)
        .values(run_id=run_id, **values)
        .on_conflict_do_update(index_elements=["run_id"], set_=values)
    )
