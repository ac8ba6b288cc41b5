"""Two attempts of one run at once: which of them the run is followed by."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sql

from spikeguard_protocol import AttemptEnded, SegmentId, SegmentPoint
from spikeguard_server.ingest.timeouts import let_time_pass
from spikeguard_server.settings import Settings
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import FIRST, SECOND, Job, rows, spiking, value
from tests.server.store.test_commands import waiting

ONSET = 301


def two_jobs(engine: sql.Engine) -> tuple[Job, Job]:
    """A job, and one that somebody started beside it by mistake."""
    original = Job(engine, age_s=0.0)
    original.start()
    original.train(1, 220, batch=55)
    duplicate = Job(engine, attempt=SECOND, age_s=0.0)
    duplicate.start()
    duplicate.train(1, 40)
    original.train(221, 250)
    return original, duplicate


def followed(engine: sql.Engine) -> list[tuple[object, ...]]:
    return rows(engine, "select current_attempt, current_segment, state from runs")


def test_a_job_is_followed_again_once_the_one_beside_it_has_ended(engine: sql.Engine) -> None:
    """Its next spike is seen by its own warm baseline, and orders go to it again."""
    original, duplicate = two_jobs(engine)
    assert followed(engine) == [(2, 0, "live")]
    duplicate.send(AttemptEnded("RuntimeError"))
    ack = original.train(251, 300)
    assert followed(engine) == [(1, 0, "live")]
    assert ack.live_attempts == 1
    ack = original.train(ONSET, 460, spiking(ONSET), batch=40)
    assert rows(engine, "select attempt, onset_step from incidents") == [(1, ONSET)]
    assert ack.attentive
    assert value(engine, "select count(*) from commands where attempt = 1") > 0


def test_a_job_is_followed_again_once_the_one_beside_it_is_lost(engine: sql.Engine) -> None:
    original, duplicate = two_jobs(engine)
    settings, later = Settings(), datetime.now(UTC) + timedelta(seconds=1000)
    with engine.begin() as connection:
        key = run_key(duplicate.message(sequence=1).run_id)
        let_time_pass(connection, key, settings, later)
    original.now = later
    original.train(251, 300)
    assert followed(engine) == [(1, 0, "live")]
    assert rows(engine, "select number, lost from attempts order by 1") == [(1, False), (2, True)]


def test_what_an_earlier_attempt_left_behind_does_not_take_the_run_back(
    engine: sql.Engine,
) -> None:
    """A backlog was made before its successor ended, however fresh it arrives."""
    original, duplicate = two_jobs(engine)
    duplicate.send(AttemptEnded("RuntimeError"))
    original.age_s = 30.0
    original.train(251, 300)
    assert followed(engine) == [(2, 0, "ended")]


def test_what_another_attempt_sends_is_not_kept_with_the_incident(spiked: sql.Engine) -> None:
    job, _, _ = waiting(spiked)
    newer = Job(spiked, attempt=SECOND, age_s=0.0)
    newer.start(SegmentPoint(SegmentId(FIRST, 0), 560))
    newer.train(561, 570)
    job.train(561, 600, spiking(401))
    kept = "select attempt, max(step) from incident_samples group by 1 order by 1"
    assert rows(spiked, kept) == [(1, 560), (2, 570)]
