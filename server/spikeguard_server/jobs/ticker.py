"""The tickers: two threads a replica that drive timeouts and other work.

What is due is listed without locks, then done one run a transaction under that run's lock; a run
that fails is logged and does not keep the others waiting. What somebody waits for (expiry, silence,
escalation) is never behind what takes long (figures, housekeeping): that has a thread of its own.
Any number of replicas may tick at once, and none has to: validity is checked again wherever a
command is read, approved or delivered. What fails of housekeeping (compaction and retention) is
logged, tried again the next time, and keeps nothing else from being done.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import partial
from threading import Event, Thread
from time import monotonic
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_cli.access_commands import expiry_words
from spikeguard_server.ingest.timeouts import let_time_pass, write_down
from spikeguard_server.jobs.effects import judge_note
from spikeguard_server.jobs.postmortems import CountIncident, count_closed
from spikeguard_server.retries import survive, work_off
from spikeguard_server.settings import Settings
from spikeguard_server.store.chunks import SegmentKey, compact, segments_behind
from spikeguard_server.store.deleted_runs import drop_curves, quiet_attempts
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.notes import due_notes
from spikeguard_server.store.reads.fleet import runs_due
from spikeguard_server.store.runs import lock_run
from spikeguard_server.store.tokens import expiring_agents

_log = logging.getLogger(__name__)
HOUSEKEEPING_S: Final = 600.0
WARN_S: Final = 86_400.0  # between two warnings of tokens that end soon
STOP_TIMEOUT_S: Final = 30.0
COMPACTED_AT_ONCE: Final = 200  # segments


class Ticker:
    """Ticks until it is stopped."""

    def __init__(self, settings: Settings, engine: sql.Engine, count: CountIncident) -> None:
        self._settings, self._engine, self._count = settings, engine, count
        self._stopping = Event()
        self._threads: tuple[Thread, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether both threads run."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        self._stopping.clear()
        self._threads = (
            Thread(target=self._tick, name="ticker", daemon=True),
            Thread(target=self._tidy, name="housekeeping", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after what is at hand."""
        self._stopping.set()
        give_up_at = monotonic() + STOP_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - monotonic()))

    def _tick(self) -> None:
        let = partial(let_time_pass, settings=self._settings)
        work = partial(work_off, self._engine, self._due, let, "run", self._stopping)
        while not self._stopping.wait(self._settings.tick_s):
            survive(work, "tick")

    def _due(self, connection: sql.Connection) -> list[UUID]:
        return runs_due(connection, self._settings, database_now(connection))

    def _tidy(self) -> None:
        tidied_at, warned_at = -HOUSEKEEPING_S, -WARN_S
        while not self._stopping.wait(self._settings.tick_s):
            survive(partial(count_closed, self._engine, self._count), "figures of incidents")
            judge = partial(work_off, self._engine, due_notes, judge_note, "note", self._stopping)
            survive(judge, "notes")
            survive(partial(compact_behind, self._engine), "compaction")
            if monotonic() - warned_at >= WARN_S:
                warned_at = monotonic()
                survive(partial(warn_of_expiry, self._engine), "tokens that end soon")
            if monotonic() - tidied_at >= HOUSEKEEPING_S:
                tidied_at = monotonic()
                survive(partial(let_go, self._engine, self._settings), "old samples")


def compact_behind(engine: sql.Engine) -> None:
    """Put together the small chunks that segments have gone past."""
    find = partial(segments_behind, limit=COMPACTED_AT_ONCE)
    work_off(engine, find, _compact, "compaction of")


def _compact(connection: sql.Connection, key: SegmentKey) -> None:
    if lock_run(connection, key.run_id) is not None:  # else it was deleted meanwhile
        compact(connection, key)


def let_go(engine: sql.Engine, settings: Settings) -> None:
    """Delete the curves that are past their time."""
    days = settings.keep_samples_days

    def drop(connection: sql.Connection, quiet: tuple[UUID, int]) -> None:
        write_down(connection, quiet[0])
        drop_curves(connection, *quiet, days)

    if days > 0:
        work_off(engine, partial(quiet_attempts, days=days), drop, "old samples of")


def warn_of_expiry(engine: sql.Engine) -> None:
    """Log which training jobs' tokens end soon."""
    with engine.connect() as connection:
        for token in expiring_agents(connection):
            _log.warning("%s", expiry_words(asdict(token)))
