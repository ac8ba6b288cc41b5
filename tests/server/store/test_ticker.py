"""What time does where no message comes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sql

from spikeguard_server.ingest.decisions import approve
from spikeguard_server.ingest.timeouts import let_time_pass
from spikeguard_server.jobs.ticker import Ticker
from spikeguard_server.settings import Settings
from spikeguard_server.store.due import runs_due
from tests.agent.wire import await_that
from tests.server.store.jobs import Job, execute, rows, spiking, value
from tests.server.store.test_commands import ONSET, state_of, waiting

SETTINGS = Settings()


def pass_time(engine: sql.Engine, seconds: float) -> bool:
    """As if `seconds` had gone by; whether anything was due."""
    later = datetime.now(UTC) + timedelta(seconds=seconds)
    with engine.begin() as connection:
        due = runs_due(connection, SETTINGS, later)
        for run_id in due:
            let_time_pass(connection, run_id, SETTINGS, later)
    return bool(due)


def test_a_proposal_expires_to_nothing_though_the_run_goes_on(spiked: sql.Engine) -> None:
    job, command, _ = waiting(spiked)
    execute(spiked, "update commands set expires_at = now()")
    assert pass_time(spiked, 1)
    assert state_of(spiked, command) == "expired"
    assert not pass_time(spiked, 1)
    assert str(command) not in [order.command for order in job.send().orders]


def test_an_order_to_an_attempt_that_fell_silent_is_unknown(spiked: sql.Engine) -> None:
    job, command, revision = waiting(spiked)
    approve(spiked, command, revision, "Ada")
    job.train(561, 570, spiking(ONSET))
    assert pass_time(spiked, SETTINGS.lost_after_s + 1)
    assert state_of(spiked, command) == "unknown"
    assert value(spiked, "select lost from attempts") is True
    assert value(spiked, "select state from incidents") == "open"


def test_a_run_silent_for_a_day_is_over_and_its_incident_closes(spiked: sql.Engine) -> None:
    assert pass_time(spiked, SETTINGS.ended_after_s + 1)
    assert rows(spiked, "select state, outcome from incidents") == [("closed", "run_ended")]
    assert value(spiked, "select state from runs") == "ended"
    assert not pass_time(spiked, SETTINGS.ended_after_s + 1)


def test_the_thread_ticks_and_stops(engine: sql.Engine) -> None:
    """And lives on when the database says no."""
    job = Job(engine)
    job.start()
    ticker = Ticker(Settings(tick_s=0.05, silent_after_s=1.0), engine)
    execute(engine, "alter table commands rename to hidden")
    ticker.start()
    time.sleep(0.3)
    assert ticker.alive
    execute(engine, "alter table hidden rename to commands")
    await_that(lambda: value(engine, "select state from runs") == "silent")
    ticker.stop()
    assert not ticker.alive


def test_old_snapshots_go_and_those_at_targets_or_beginnings_last(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spikeguard_server.ingest.records.SNAPSHOT_STEPS", 10)
    monkeypatch.setattr("spikeguard_server.store.detectors.SNAPSHOTS_KEPT", 5)
    job = Job(engine)
    job.start()
    job.train(1, 200, save_every=100)
    kept = [row[0] for row in rows(engine, "select step from detector_snapshots order by step")]
    assert kept == [0, 100, 180, 190, 200]
