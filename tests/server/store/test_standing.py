"""Whatever changes where a run or an attempt stands is in the audit, with its reason, once."""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_protocol import AttemptEnded, SegmentId, SegmentPoint
from tests.server.store.jobs import FIRST, SECOND, Job, execute, rows, value
from tests.server.store.test_ticker import SETTINGS, pass_time

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
    job = Job(engine)
    job.start()
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
