"""Housekeeping: compaction and retention, when nobody waits for it.

One run or one week a transaction. What fails is logged, tried again the next time, and keeps
nothing else from being done.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import date
from functools import partial
from typing import Final

import sqlalchemy as sql

from spikeguard_cli.access_commands import expiry_words
from spikeguard_server.ingest.deletion import REMOVE_S, finish_deletion
from spikeguard_server.ingest.timeouts import write_down
from spikeguard_server.retries import survive
from spikeguard_server.settings import Settings
from spikeguard_server.store.chunks import SegmentKey, compact, segments_behind
from spikeguard_server.store.deleted_runs import runs_with_curves_left
from spikeguard_server.store.detectors import detectors_on
from spikeguard_server.store.partitions import drop_partitions, make_partitions, old_weeks
from spikeguard_server.store.runs import lock_run
from spikeguard_server.store.tokens import expiring_agents

_log = logging.getLogger(__name__)
COMPACTED_AT_ONCE: Final = 200  # segments


def compact_behind(engine: sql.Engine) -> None:
    """Put together the small chunks that segments have gone past."""
    with engine.connect() as connection:
        behind = segments_behind(connection, COMPACTED_AT_ONCE)
    for key in behind:
        survive(partial(_compact, engine, key), f"compaction of {key}")


def _compact(engine: sql.Engine, key: SegmentKey) -> None:
    with engine.begin() as connection:
        lock_run(connection, key.run_id)
        compact(connection, key)


def let_go(engine: sql.Engine, settings: Settings) -> None:
    """Make this week's partitions, and drop those that are past their time."""
    survive(partial(_make_partitions, engine), "this week's partitions")
    if (days := settings.keep_samples_days) > 0:
        survive(partial(_let_go, engine, days), "partitions")


def _make_partitions(engine: sql.Engine) -> None:
    with engine.begin() as connection:
        make_partitions(connection)


def _let_go(engine: sql.Engine, days: float) -> None:
    with engine.connect() as connection:
        old = old_weeks(connection, days)
    for week in old:
        survive(partial(_drop, engine, week, days), f"dropping samples of {week}")


def _drop(engine: sql.Engine, week: date, days: float) -> None:
    with engine.connect() as connection:
        leaning = detectors_on(connection, week)
    for run_id in leaning:
        with engine.begin() as connection:
            write_down(connection, run_id)
    with engine.begin() as connection:
        drop_partitions(connection, week, days)


def warn_of_expiry(engine: sql.Engine) -> None:
    """Log which training jobs' tokens end soon."""
    with engine.connect() as connection:
        for token in expiring_agents(connection):
            _log.warning("%s", expiry_words(asdict(token)))


def finish_deletions(engine: sql.Engine) -> None:
    """Remove what deletions that were cut off left behind."""
    with engine.connect() as connection:
        unfinished = runs_with_curves_left(connection)
    for run_id in unfinished:
        survive(partial(finish_deletion, engine, run_id, REMOVE_S), f"samples of {run_id}")


def tidy(engine: sql.Engine, settings: Settings) -> None:
    """Delete what nobody will ask for again."""
    let_go(engine, settings)
    survive(partial(finish_deletions, engine), "deleted runs")
