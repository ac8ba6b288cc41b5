"""Where a run stands, with two attempts at once too: in the audit, with its reason, once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sql

from spikeguard_protocol import AttemptEnded, SegmentId, SegmentPoint
from spikeguard_server.ingest.timeouts import let_time_pass
from spikeguard_server.settings import Settings
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import FIRST, SECOND, Job, execute, rows, spiking, value
from tests.server.store.test_commands import waiting
from tests.server.store.test_housekeeping import SETTINGS, pass_time

SILENT_S, LOST_S = SETTINGS.silent_after_s + 1, SETTINGS.lost_after_s + 1
# What is written to the two tables, in the words that the audit has for it.
WATCHED = """
CREATE TABLE seen (n int GENERATED ALWAYS AS IDENTITY, what text);
CREATE FUNCTION see_run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF old.state <> new.state THEN INSERT INTO seen (what) VALUES (new.state); END IF;
    IF old.current_attempt <> new.current_attempt
    THEN INSERT INTO seen (what) VALUES ('attempt.followed'); END IF;
    RETURN NULL; END $$;
CREATE FUNCTION see_attempt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF tg_op = 'INSERT' THEN
        INSERT INTO seen (what) VALUES ('attempt.started'); RETURN NULL; END IF;
    IF old.lost <> new.lost THEN INSERT INTO seen (what)
        VALUES (CASE WHEN new.lost THEN 'attempt.lost' ELSE 'attempt.found' END); END IF;
    IF old.ended_at IS NULL AND new.ended_at IS NOT NULL
    THEN INSERT INTO seen (what) VALUES ('attempt.ended'); END IF;
    RETURN NULL; END $$;
CREATE TRIGGER see AFTER UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION see_run();
CREATE TRIGGER see AFTER INSERT OR UPDATE ON attempts FOR EACH ROW EXECUTE FUNCTION see_attempt();
"""
ENTRIES = "select action, before, after, reason from audit where action <> 'drop' order by number"


def watched(engine: sql.Engine) -> Job:
    """A calm job whose every change is looked at from beside."""
    execute(engine, WATCHED)
    job = Job(engine).start()
    job.train(1, 40)
    return job


def told(engine: sql.Engine) -> list[tuple[str, str | None, str | None]]:
    """The entries, which say no less and no more than was written to the tables."""
    entries = rows(engine, ENTRIES)
    written = sorted(str(row[0]) for row in rows(engine, "select what from seen"))
    assert sorted(str(entry[0]) for entry in entries) == written
    assert all(entry[3] for entry in entries), "each has its reason"
    return [(entry[0], entry[1], entry[2]) for entry in entries]


STARTED = ("attempt.started", None, "attempt 1")


def test_an_attempt_that_is_lost_and_found_has_an_entry_for_each(engine: sql.Engine) -> None:
    job = watched(engine)
    assert pass_time(engine, LOST_S)
    job.train(41, 50)
    assert set(told(engine)[1:]) == {
        ("attempt.lost", "attempt 1", None),
        ("silent", "live", "silent"),
        ("attempt.found", None, "attempt 1"),
        ("live", "silent", "live"),
    }


def test_an_end_and_a_restart_have_their_entries_with_the_reason_given(engine: sql.Engine) -> None:
    job = watched(engine)
    job.send(AttemptEnded("RuntimeError: out of memory"))
    job.send(AttemptEnded("RuntimeError: out of memory"))
    again = Job(engine, attempt=SECOND, age_s=0.0)
    again.start(SegmentPoint(SegmentId(FIRST, 0), 40))
    again.train(41, 60)
    assert told(engine) == [
        STARTED,
        ("attempt.ended", "attempt 1", None),
        ("ended", "live", "ended"),
        ("attempt.started", None, "attempt 2"),
        ("attempt.followed", "attempt 1", "attempt 2"),
        ("live", "ended", "live"),
    ]
    ended = value(engine, "select reason from audit where action = 'ended'")
    assert ended == "attempt 1 ended: RuntimeError: out of memory"


ONSET = 301


def two_jobs(engine: sql.Engine) -> tuple[Job, Job]:
    """A job, and one that somebody started beside it by mistake."""
    original = Job(engine, age_s=0.0).start()
    original.train(1, 220, batch=55)
    duplicate = Job(engine, attempt=SECOND, age_s=0.0).start()
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
