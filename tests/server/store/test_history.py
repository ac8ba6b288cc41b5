"""History is a tree, and the detector's decisions are a function of it alone."""

from __future__ import annotations

from hashlib import sha256

import pytest
import sqlalchemy as sql

from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import SegmentId, SegmentPoint, SegmentReason, SegmentStarted
from spikeguard_server.errors import NotSignedIn
from spikeguard_server.ingest import Monitors, receive
from spikeguard_server.ingest.detection import past_monitor
from spikeguard_server.settings import Settings
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.samples import read_samples
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import (
    FIRST,
    SECOND,
    Job,
    columns,
    healthy,
    rows,
    spiking,
    value,
)

DECISIONS = """
select number, step, kind, confidence, reason
from incident_revisions order by incident, number
"""
STATE = "select step, state from detector_states"


@pytest.mark.parametrize(
    ("batch", "monitors"),
    [(7, True), (11, False)],
    ids=["in sevens", "reloaded every time"],
)
def test_decisions_do_not_depend_on_how_samples_travel(
    engine: sql.Engine, batch: int, monitors: bool
) -> None:
    undisturbed = Job(engine, run="undisturbed")
    undisturbed.start()
    undisturbed.train(1, 400, spiking(251, length=40), batch=400)
    reference, state = rows(engine, DECISIONS), rows(engine, STATE)
    assert reference
    with engine.begin() as connection:
        connection.execute(sql.text("delete from incident_revisions"))
        connection.execute(sql.text("delete from detector_states"))
    job = Job(engine, monitors=Monitors() if monitors else None)
    job.start()
    job.train(1, 220, batch=55)
    job.train(221, 400, spiking(251, length=40), batch=batch)
    assert rows(engine, DECISIONS) == reference
    assert rows(engine, STATE) == state


def test_a_rollback_overwrites_nothing(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.train(1, 320)
    job.roll_back("gpt#1.1", 200, at_step=320, position=200)
    job.train(201, 260, lambda step: healthy(step) + 0.001, segment=1, shift=20)
    both = "select segment, loss from samples where step = 250 order by segment"
    assert rows(engine, both) == [(0, healthy(250)), (1, healthy(250) + 0.001)]
    tree = "select segment, parent_segment, parent_step, first_step, last_step from segments"
    assert rows(engine, f"{tree} order by segment") == [
        (0, None, None, 1, 320),
        (1, 0, 200, 201, 260),
    ]


def test_the_detector_at_any_step_is_the_nearest_snapshot_and_a_replay(engine: sql.Engine) -> None:
    job = Job(engine, settings=Settings(detector_snapshot_steps=200))
    job.start()
    job.train(1, 400)
    key = run_key(job.message(sequence=1).run_id)
    for step in (1, 37, 200, 201, 333, 400):
        with engine.connect() as connection:
            past = past_monitor(connection, key, Place(1, 0, step))
            straight = Monitor()
            straight.observe(read_samples(connection, key, 1, 0, 1, step))
        assert past is not None
        assert past.monitor.dump() == straight.dump(), step


def test_the_detector_goes_on_from_where_the_run_was_and_is_not_blind(engine: sql.Engine) -> None:
    """A spike a few steps after a rollback or a restart is seen by the warm baseline."""
    job = Job(engine)
    job.start()
    job.train(1, 320)
    new = Job(engine, attempt=SECOND, age_s=0.0)
    new.start(SegmentPoint(SegmentId(FIRST, 0), 250))
    new.train(251, 280, spiking(258))
    assert rows(engine, "select onset_step, attempt, segment from incidents") == [(258, 2, 0)]


def test_a_snapshot_is_kept_at_every_checkpoint(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.train(1, 320, batch=50)
    kept = "select step from detector_snapshots where at_target order by step"
    assert [row[0] for row in rows(engine, kept)] == [100, 200, 300]


def test_a_parent_that_never_reached_the_server_leaves_the_baseline_alone(
    engine: sql.Engine,
) -> None:
    job = Job(engine)
    job.start()
    job.train(1, 200)
    new = Job(engine, attempt=SECOND, age_s=0.0)
    new.start(SegmentPoint(SegmentId("00000000000000ff", 3), 300))
    new.train(301, 330, spiking(320))
    assert value(engine, "select onset_step from incidents") == 320


UNJUDGED = SegmentPoint(SegmentId(FIRST, 0), 9000)
SHORTENED = "select reason from audit where action = 'detection.shortened'"


def over_a_long_history(engine: sql.Engine) -> Job:
    """An attempt of a run in which another one has told of 9,000 steps that nobody judged."""
    job = Job(engine, attempt=SECOND, age_s=0.0)
    job.start()
    past = Job(engine, age_s=10**6)
    past.start()
    past.send(columns(range(1, 9001), healthy))
    return job


def test_a_short_message_has_no_long_history_judged_again(engine: sql.Engine) -> None:
    """The newest rows alone are learned, and the audit says so: 300 bytes cost a tenth of a
    second, whatever the run has stored."""
    job = over_a_long_history(engine)
    job.send(SegmentStarted(1, SegmentReason.ROLLBACK, UNJUDGED, 0))
    key = run_key(job.message(sequence=1).run_id)
    newest = Monitor()
    with engine.connect() as connection:
        newest.observe(read_samples(connection, key, 1, 0, 5001, 9000))
        past = past_monitor(connection, key, Place(1, 0, 9000))
    assert past is not None
    assert past.monitor.dump() == newest.dump()
    assert "more than 4,000 rows" in value(engine, SHORTENED)


def test_a_token_of_another_run_does_not_have_the_detector_read_anew(engine: sql.Engine) -> None:
    job, stranger = Job(engine), sha256(b"no token of this run").digest()
    job.start()
    job.train(1, 50)
    with pytest.raises(NotSignedIn):
        receive(engine, job.message(), monitors=job.monitors, bearer=stranger)
    assert job.monitors is not None
    assert job.monitors.take(run_key(job.message(sequence=1).run_id)) is not None
