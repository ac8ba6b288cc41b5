"""Housekeeping: compaction and retention, when nobody waits for it.

One run a transaction. What fails is logged, tried again the next time, and keeps
nothing else from being done.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import partial
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_cli.access_commands import expiry_words
from spikeguard_server.ingest.timeouts import write_down
from spikeguard_server.retries import survive
from spikeguard_server.settings import Settings
from spikeguard_server.store.chunks import SegmentKey, compact, segments_behind
from spikeguard_server.store.deleted_runs import (
    drop_curves,
    quiet_attempts,
    remove_curves,
    runs_with_curves_left,
)
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
        if lock_run(connection, key.run_id) is not None:  # else it was deleted meanwhile
            compact(connection, key)


def let_go(engine: sql.Engine, settings: Settings) -> None:
    """Delete the curves that are past their time."""
    if (days := settings.keep_samples_days) > 0:
        with engine.connect() as connection:
            quiet = quiet_attempts(connection, days)
        for run_id, attempt in quiet:
            survive(partial(_drop, engine, run_id, attempt, days), f"old samples of {run_id}")


def _drop(engine: sql.Engine, run_id: UUID, attempt: int, days: float) -> None:
    with engine.begin() as connection:
        write_down(connection, run_id)
    more = True
    while more:
        with engine.begin() as connection:
            more = drop_curves(connection, run_id, attempt, days)


def warn_of_expiry(engine: sql.Engine) -> None:
    """Log which training jobs' tokens end soon."""
    with engine.connect() as connection:
        for token in expiring_agents(connection):
            _log.warning("%s", expiry_words(asdict(token)))


def finish_deletions(engine: sql.Engine) -> None:
    """Remove the curves of deleted runs."""
    with engine.connect() as connection:
        unfinished = runs_with_curves_left(connection)
    for run_id in unfinished:
        survive(partial(_remove, engine, run_id), f"samples of {run_id}")


def _remove(engine: sql.Engine, run_id: UUID) -> None:
    more = True
    while more:
        with engine.begin() as connection:
            more = remove_curves(connection, run_id)


def tidy(engine: sql.Engine, settings: Settings) -> None:
    """Delete what nobody will ask for again."""
    survive(partial(let_go, engine, settings), "old samples")
    survive(partial(finish_deletions, engine), "deleted runs")
