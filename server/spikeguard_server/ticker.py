"""What drives time where no message does: one thread a replica.

Law: what is due is listed without locks, then done one run a transaction under that run's lock; a
run that fails is logged and does not keep the others waiting. Any number of replicas may tick at
once, and none has to: validity is checked again wherever a command is read, approved or delivered.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from datetime import date
from functools import partial
from threading import Event, Thread
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.ingest.passing import let_time_pass, write_down
from spikeguard_server.postmortem import gather
from spikeguard_server.report.render import Format, render
from spikeguard_server.repository.audit import SERVER, append
from spikeguard_server.repository.detectors import (
    detectors_on,
    prune_snapshots,
    runs_with_snapshots,
)
from spikeguard_server.repository.due import runs_due
from spikeguard_server.repository.engine import database_now
from spikeguard_server.repository.outdated import (
    drop_ended_sessions,
    drop_old,
    old_before,
    runs_with_old,
)
from spikeguard_server.repository.pieces import SegmentKey
from spikeguard_server.repository.reports import (
    due_reports,
    postpone_report,
    report_due_at,
    settle_report,
    write_report,
)
from spikeguard_server.repository.rolling import roll_up, segments_behind, segments_unfinished
from spikeguard_server.repository.runs import lock_run
from spikeguard_server.repository.shelves import Kind, drop_shelf, make_shelf, old_shelves
from spikeguard_server.settings import Settings
from spikeguard_server.tables import FLEET

_log = logging.getLogger(__name__)
HOUSEKEEPING_S = 600.0
ROLLED_AT_ONCE = 200  # segments
STOP_TIMEOUT_S = 30.0


class Ticker:
    """Ticks until it is stopped."""

    def __init__(self, settings: Settings, engine: sql.Engine) -> None:
        self._settings = settings
        self._engine = engine
        self._stopping = Event()
        self._thread: Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        self._stopping.clear()
        self._thread = Thread(target=self._run, name="ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the transaction at hand."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        ticks_between = max(1, round(HOUSEKEEPING_S / self._settings.tick_s))
        ticks = 0
        while not self._stopping.wait(self._settings.tick_s):
            _survive(partial(tick, self._engine, self._settings), "tick")
            _survive(partial(roll, self._engine), "roll-ups")
            if ticks % ticks_between == 0:
                _survive(partial(tidy, self._engine, self._settings), "housekeeping")
            ticks += 1


def tick(engine: sql.Engine, settings: Settings) -> None:
    """Do everything that is due now."""
    with engine.connect() as connection:
        due = runs_due(connection, settings, database_now(connection))
    for run_id in due:
        _survive(partial(_pass, engine, run_id, settings), f"run {run_id}")
    with engine.connect() as connection:
        unwritten = due_reports(connection, database_now(connection))
    for run_id, number in unwritten:
        _survive(partial(_report, engine, run_id, number), f"report {run_id}#{number}")


def _pass(engine: sql.Engine, run_id: UUID, settings: Settings) -> None:
    with engine.begin() as connection:
        let_time_pass(connection, run_id, settings)


def _report(engine: sql.Engine, run_id: UUID, number: int) -> None:
    try:
        report(engine, run_id, number)
    except Exception:
        with engine.begin() as connection:
            postpone_report(connection, run_id, number)
        raise


def report(engine: sql.Engine, run_id: UUID, number: int) -> None:
    """Write the post-mortem of a closed incident in every format.

    Drawing takes a second, so the facts are read under the lock and drawn outside it.
    """
    with engine.begin() as connection:
        run = lock_run(connection, run_id)
        assert run is not None
        due_at = report_due_at(connection, run_id, number)
        facts = gather(connection, run, number, database_now(connection))
    documents = {form: render(facts, form) for form in Format}
    with engine.begin() as connection:
        for form, body in documents.items():
            write_report(connection, run_id, number, form.value, body, facts.written_at)
        settle_report(connection, run_id, number, due_at)


def roll(engine: sql.Engine) -> None:
    """Roll up what segments have gone past."""
    with engine.connect() as connection:
        behind = segments_behind(connection, ROLLED_AT_ONCE)
    for key in behind:
        _survive(partial(_roll, engine, key), f"roll-ups of {key}")


def _roll(engine: sql.Engine, key: SegmentKey, whole: bool = False) -> bool:
    with engine.begin() as connection:
        lock_run(connection, key.run_id)
        return roll_up(connection, key, whole=whole)


def let_go(engine: sql.Engine, settings: Settings) -> None:
    """Make this week's shelf, and drop those that are past their time."""
    with engine.begin() as connection:
        make_shelf(connection)
    for kind, days in (
        (Kind.SAMPLES, settings.keep_samples_days),
        (Kind.ROLLUPS, settings.keep_rollups_days),
        (Kind.LAYERS, settings.keep_layers_days),
    ):
        if days > 0:
            with engine.connect() as connection:
                old = old_shelves(connection, kind, days)
            for shelf in old:
                _drop(engine, kind, shelf, days)


def _drop(engine: sql.Engine, kind: Kind, shelf: date, days: float) -> None:
    if kind is Kind.SAMPLES:
        with engine.connect() as connection:
            unfinished = segments_unfinished(connection, shelf, ROLLED_AT_ONCE)
            leaning = detectors_on(connection, shelf)
        for run_id in leaning:
            with engine.begin() as connection:
                write_down(connection, run_id)
        for key in unfinished:
            while not _roll(engine, key, whole=True):
                pass
        if len(unfinished) == ROLLED_AT_ONCE:
            return  # the rest, and then the shelf, next time
    with engine.begin() as connection:
        drop_shelf(connection, kind, shelf, days)


def forget(engine: sql.Engine, days: float) -> None:
    """Let go what people were told longer ago than that, and say how much of what it was."""
    with engine.connect() as connection:
        before = old_before(connection, days)
        behind = runs_with_old(connection, before)
    gone = Counter[str]()
    for run_id in behind:
        with engine.begin() as connection:
            gone.update(drop_old(connection, run_id, before))
    with engine.begin() as connection:
        gone["sessions"] += drop_ended_sessions(connection, before)
        if told := ", ".join(f"{count} {what}" for what, count in gone.items() if count):
            append(
                connection, FLEET, actor=SERVER, action="drop", subject=told,
                reason=f"over before {before:%Y-%m-%d}: kept for {days:g} days",
            )  # fmt: skip


def tidy(engine: sql.Engine, settings: Settings) -> None:
    """Delete what nobody will ask for again."""
    kept = settings.detector_snapshots_kept
    let_go(engine, settings)
    if settings.keep_deliveries_days > 0:
        forget(engine, settings.keep_deliveries_days)
    with engine.connect() as connection:
        runs = runs_with_snapshots(connection, kept)
    for run_id in runs:
        with engine.begin() as connection:
            prune_snapshots(connection, run_id, kept)


def _survive(work: Callable[[], object], what: str) -> None:
    """A ticker that died would take expiry and reports with it."""
    try:
        work()
    except Exception:
        _log.exception("ticker: %s failed; it is tried again", what)
