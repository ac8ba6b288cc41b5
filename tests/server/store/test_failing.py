"""A fault of the detector's own costs judgement for a while, never a run's data or its outbox."""

from __future__ import annotations

import math

import pytest
import sqlalchemy as sql

from spikeguard_server.ingest.detection import freeze, thaw
from tests.server.store.jobs import Job, rows, spiking, value

NOTED = "select action from audit where action like 'detection.%' order by number"


def poison(engine: sql.Engine) -> None:
    """Make the stored state one that reads well and fails on whatever comes next."""
    monitor = thaw(value(engine, "select state from detector_states"))
    monitor.state.own.clear()
    with engine.begin() as connection:
        connection.execute(
            sql.text("update detector_states set state = :state, state_step = step"),
            {"state": freeze(monitor)},
        )


def test_a_message_that_detection_fails_on_is_stored_and_acknowledged(engine: sql.Engine) -> None:
    """The outbox would send it again for ever, and nothing after it."""
    job = Job(engine, monitors=None)
    job.start()
    job.train(1, 200)
    poison(engine)
    ack = job.train(201, 220)
    assert ack.sequence == job.sequence
    assert value(engine, "select count(*) from samples") == 220
    assert value(engine, "select last_step from runs") == 220
    assert rows(engine, NOTED) == [("detection.failed",)]
    reason = value(engine, "select reason from audit where action = 'detection.failed'")
    assert "stored and not judged" in reason


def test_a_detector_that_goes_on_failing_begins_anew_and_sees_the_next_spike(
    engine: sql.Engine,
) -> None:
    job = Job(engine, monitors=None)
    job.start()
    job.train(1, 200)
    poison(engine)
    job.train(201, 230, batch=10)
    assert rows(engine, NOTED) == [("detection.failed",), ("detection.restarted",)]
    job.train(231, 500, save_every=10**9)
    assert value(engine, "select failures from detector_states") == 0
    assert value(engine, "select incidents from runs") == 0
    job.train(501, 520, spiking(501))
    assert rows(engine, "select number, onset_step from incidents") == [(1, 501)]


def test_an_incident_that_is_not_followed_any_more_is_closed_and_says_why(
    engine: sql.Engine,
) -> None:
    """One that stayed open would keep every later spike from being seen."""
    job = Job(engine, monitors=None)
    job.start()
    job.train(1, 300, spiking(251))
    assert value(engine, "select open_incident from runs") == 1
    poison(engine)
    job.train(301, 330, spiking(251), batch=10)
    assert rows(engine, "select state, outcome, record->>'reason' from incidents") == [
        ("closed", "run_ended", "detection failed and began anew")
    ]
    assert value(engine, "select open_incident from runs") is None


def test_a_message_that_takes_too_long_to_judge_is_stored_and_the_next_one_is_judged(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,000 steps every third is NaN, and most of them are an event."""
    job = Job(engine)
    job.start()
    job.train(1, 200)
    with monkeypatch.context() as patch:
        patch.setattr("spikeguard_server.ingest.message_context.MOST_CPU_S", 0.01)
        job.train(201, 1200, lambda step: math.nan if step % 3 == 0 else 2.0, batch=1000)
    assert value(engine, "select count(*) from samples") == 1200
    assert rows(engine, NOTED) == [("detection.failed",)]
    reason = value(engine, "select reason from audit where action = 'detection.failed'")
    assert reason.endswith("not judged: to judge it took more than 0.01 s of a core")
    job.train(1201, 1210)
    assert value(engine, "select failures from detector_states") == 0
