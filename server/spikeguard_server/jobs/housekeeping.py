"""Housekeeping: compaction, pruning and retention, when nobody waits for it.

Law: one run or one week a transaction. What fails is logged, tried again the next time, and keeps
nothing else from being done.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import asdict
from datetime import date, datetime
from functools import partial
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_cli.access_commands import expiry_words
from spikeguard_server.ingest.deletion import REMOVE_S, finish_deletion
from spikeguard_server.ingest.timeouts import write_down
from spikeguard_server.retries import survive
from spikeguard_server.settings import Settings
from spikeguard_server.store.audit import SERVER, append
from spikeguard_server.store.chunks import SegmentKey
from spikeguard_server.store.compaction import compact, segments_behind
from spikeguard_server.store.deleted_runs import runs_with_curves_left
from spikeguard_server.store.detectors import detectors_on, runs_with_snapshots, thinning
from spikeguard_server.store.engine import ask
from spikeguard_server.store.partitions import (
    PartitionKind,
    drop_partition,
    make_partitions,
    old_weeks,
)
from spikeguard_server.store.retention import (
    drop_ended_sessions,
    drop_old,
    old_before,
    runs_with_old,
)
from spikeguard_server.store.runs import lock_run
from spikeguard_server.store.tables.core import FLEET
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
    for kind, days in (
        (PartitionKind.SAMPLES, settings.keep_samples_days),
        (PartitionKind.LAYERS, settings.keep_layers_days),
    ):
        if days > 0:
            survive(partial(_let_go, engine, kind, days), f"partitions of {kind}")


def _make_partitions(engine: sql.Engine) -> None:
    with engine.begin() as connection:
        make_partitions(connection)


def _let_go(engine: sql.Engine, kind: PartitionKind, days: float) -> None:
    with engine.connect() as connection:
        old = old_weeks(connection, kind, days)
    for week in old:
        survive(partial(_drop, engine, kind, week, days), f"dropping {kind} of {week}")


def _drop(engine: sql.Engine, kind: PartitionKind, week: date, days: float) -> None:
    if kind is PartitionKind.SAMPLES:
        with engine.connect() as connection:
            leaning = detectors_on(connection, week)
        for run_id in leaning:
            with engine.begin() as connection:
                write_down(connection, run_id)
    with engine.begin() as connection:
        drop_partition(connection, kind, week, days)


def forget(engine: sql.Engine, days: float) -> None:
    """Let go what people were told longer ago than that, and say how much of what it was."""
    with engine.connect() as connection:
        before = old_before(connection, days)
        behind = runs_with_old(connection, before)
    gone = Counter[str]()
    for run_id in behind:
        survive(partial(_forget, engine, run_id, before, gone), f"what was told of run {run_id}")
    with engine.begin() as connection:
        gone["sessions"] += drop_ended_sessions(connection, before)
        if told := ", ".join(f"{count} {what}" for what, count in gone.items() if count):
            append(
                connection, FLEET, actor=SERVER, action="drop", subject=told,
                reason=f"over before {before:%Y-%m-%d}: kept for {days:g} days",
            )  # fmt: skip


def _forget(engine: sql.Engine, run_id: UUID, before: datetime, gone: Counter[str]) -> None:
    with engine.begin() as connection:
        dropped = drop_old(connection, run_id, before)
    gone.update(dropped)


def prune(engine: sql.Engine) -> None:
    """Delete the detector's snapshots that are more than are kept of a run."""
    with engine.connect() as connection:
        runs = runs_with_snapshots(connection)
    for run_id in runs:
        survive(partial(_prune, engine, run_id), f"snapshots of run {run_id}")


def _prune(engine: sql.Engine, run_id: UUID) -> None:
    with engine.begin() as connection:
        ask(connection, thinning(run_id))


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
    if (days := settings.keep_deliveries_days) > 0:
        survive(partial(forget, engine, days), "what people were told")
    survive(partial(prune, engine), "snapshots")
    survive(partial(finish_deletions, engine), "deleted runs")
