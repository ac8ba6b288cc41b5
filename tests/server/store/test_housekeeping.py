"""What time and housekeeping do where no message comes: one failure keeps nothing else waiting."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sql

from spikeguard_core.diagnosis.evidence import NEAR
from spikeguard_protocol import BatchDetail
from spikeguard_server.access.grants import put_policy
from spikeguard_server.ingest.decisions import decide
from spikeguard_server.ingest.timeouts import let_time_pass
from spikeguard_server.jobs.postmortems import count_closed
from spikeguard_server.jobs.ticker import Ticker
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.settings import Settings
from spikeguard_server.store.reads.fleet import runs_due
from spikeguard_server.store.samples import MOST_KEPT
from tests.agent.wire import await_that
from tests.server.store.jobs import Job, columns, execute, rows, spiking, value
from tests.server.store.test_aftermath import recovered
from tests.server.store.test_commands import ONSET, state_of, waiting

CLONED = ("incidents", "incident_revisions")


def clone(engine: sql.Engine, until: int) -> None:
    """Incidents 2 to `until` of the run, each as its first was."""
    for table in CLONED:
        number = "number" if table == "incidents" else "incident"
        changed = f"jsonb_build_object('{number}', n)"
        execute(
            engine,
            f"insert into {table} select (jsonb_populate_record(t, {changed})).*"
            f" from {table} t, generate_series(2, {until}) n where t.{number} = 1",
        )


def until_true(engine: sql.Engine, query: str) -> None:
    await_that(lambda: value(engine, query))


def test_an_escalation_is_on_time_though_hundreds_of_incidents_are_to_be_counted(
    spiked: sql.Engine,
) -> None:
    recovered(spiked)
    clone(spiked, 300)
    with spiked.begin() as connection:
        put_policy(connection, "default", {"escalation": [3600]}, "Ada")
    other = Job(spiked, run="other").start()
    other.train(1, 400, batch=100)
    other.train(401, 560, spiking(401), batch=40)
    ticker = Ticker(Settings(tick_s=0.05), spiked, lambda *_: None)
    ticker.start()
    try:
        until_true(spiked, "select bool_or(counted) from incidents")
        execute(spiked, "update commands set escalates_at = now() where escalates_at is not null")
        until_true(spiked, "select count(*) = 1 from audit where action = 'escalate'")
        assert value(spiked, "select count(*) from incidents where not counted") > 50
        assert ticker.alive
    finally:
        ticker.stop()
    assert not ticker.alive


def test_replicas_count_each_incident_that_closed_once(spiked: sql.Engine) -> None:
    recovered(spiked)
    clone(spiked, 4)
    counted: list[PostMortem] = []
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(count_closed, spiked, counted.append) for _ in "ab"]
        for each in done:
            each.result()
    assert len(counted) == len({facts.id for facts in counted}) == 4


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
    decide(spiked, command, "approve", revision, "Ada")
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
    Job(engine).start()
    ticker = Ticker(Settings(tick_s=0.05, silent_after_s=1.0), engine, lambda *_: None)
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
    job = Job(engine).start()
    job.train(1, 200, save_every=100)
    kept = [row[0] for row in rows(engine, "select step from detector_snapshots order by step")]
    assert kept == [0, 100, 180, 190, 200]


HURT_AT = 121  # of `spiking`


def batch(step: int, rank: int = 0, segment: int = 0) -> BatchDetail:
    return BatchDetail(segment, step, rank, step)


def steps(engine: sql.Engine) -> list[int]:
    return [row[0] for row in rows(engine, "select step from batch_details order by step, rank")]


def test_batches_that_no_incident_is_near_go_and_those_near_one_stay(engine: sql.Engine) -> None:
    job = Job(engine).start()
    job.send(*(batch(step) for step in range(1, 41)))
    job.send(columns(range(1, HURT_AT + 20), spiking(HURT_AT)))
    for some in (range(41, 400), range(400, 700)):
        job.send(*(batch(step, rank) for step in some for rank in (0, 3)))
    near = [step for step in range(HURT_AT - NEAR, HURT_AT + NEAR + 1) for _ in (0, 3)]
    newest = [step for step in range(700 - MOST_KEPT // 2, 700) for _ in (0, 3)]
    assert steps(engine) == [*near, *newest]


def test_what_a_rank_told_of_a_step_stands(engine: sql.Engine) -> None:
    job = Job(engine).start()
    job.send(batch(7), batch(7, 1), batch(7))
    job.send(batch(7, 1))
    assert steps(engine) == [7, 7]
