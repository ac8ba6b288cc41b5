"""The detector's bytes are written now and then, and are a function of the run's history alone."""

from __future__ import annotations

import pytest
import sqlalchemy as sql

from spikeguard_protocol import RunId, SegmentId, SegmentPoint
from spikeguard_server.access.grants import put_policy
from spikeguard_server.ingest.detection import Monitors, freeze, load_detection
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import FIRST, SECOND, Job, execute, healthy, rows, spiking, value

SELDOM, STEPS = 10**6, "spikeguard_server.ingest.records.SNAPSHOT_STEPS"
CURVE = spiking(251, length=40)


def known(engine: sql.Engine, run: str, remembers: Monitors | None = None) -> bytes:
    """What a replica knows of the run; None: one that never saw it, out of the database alone."""
    with engine.connect() as connection:
        return freeze(load_detection(connection, run_key(RunId("default", run)), remembers).monitor)


def undisturbed(engine: sql.Engine, last: int) -> bytes:
    job = Job(engine, run="undisturbed").start()
    job.train(1, last, CURVE, batch=last, save_every=10**9)
    return known(engine, "undisturbed")


def test_replicas_in_turn_know_what_one_alone_would_know(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each remembers the run as it was when it last saw it, and reads the samples since."""
    monkeypatch.setattr(STEPS, SELDOM)
    job, memories = Job(engine), (Monitors(), Monitors(), None)
    job.start()
    for turn, begin in enumerate(range(1, 241, 20)):
        job.monitors = memories[turn % 3]
        job.train(begin, begin + 19, CURVE, batch=20, save_every=10**9)
    assert value(engine, "select state_step from detector_states") == 0
    alone = undisturbed(engine, 240)
    assert [known(engine, "gpt", memory) for memory in memories] == [alone] * 3


def test_a_change_of_detection_is_known_to_every_replica(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are read again by what they were judged by, not by what is in force now."""
    monkeypatch.setattr(STEPS, SELDOM)
    job, memories = Job(engine), (Monitors(), Monitors(), None)
    job.start()
    for turn, begin in enumerate(range(1, 241, 20)):
        if turn in (3, 7):
            settings = {"threshold": 4 + turn}
            with engine.begin() as connection:
                put_policy(connection, "default", {"detection": settings}, "Root")
        job.monitors = memories[turn % 3]
        job.train(begin, begin + 19, CURVE, batch=20, save_every=10**9)
    key = run_key(RunId("default", "gpt"))
    with engine.connect() as connection:
        remembered = freeze(load_detection(connection, key, memories[1]).monitor)
    assert known(engine, "gpt") == remembered
    assert value(engine, "select state_step from detector_states") == 160


def test_a_backlog_does_not_bring_a_lost_attempt_back(engine: sql.Engine) -> None:
    """What was made long ago says nothing about who lives now."""
    job = Job(engine).start()
    job.train(1, 100, save_every=10**9)
    execute(engine, "update attempts set lost = true")
    job.age_s = 500.0
    job.train(101, 110, save_every=10**9)
    assert value(engine, "select lost from attempts") is True
    job.age_s = 0.1
    job.train(111, 120, save_every=10**9)
    assert value(engine, "select lost from attempts") is False


def test_a_memory_of_what_the_database_lost_is_forgotten(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup that was restored knows less than the replica does."""
    monkeypatch.setattr(STEPS, 50)
    job = Job(engine).start()
    job.train(1, 60, save_every=10**9)
    execute(engine, "create table saved as select * from detector_states")
    job.train(61, 100, spiking(61), save_every=10**9)
    columns = "(version, step, anchor, state_step, state)"
    execute(engine, f"update detector_states d set {columns} = (select {columns[1:-1]} from saved)")
    with engine.connect() as connection:
        key = run_key(RunId("default", "gpt"))
        assert job.monitors is not None
        found = load_detection(connection, key, job.monitors)
    assert freeze(found.monitor) == known(engine, "gpt")
    assert found.place.step == 60


def test_a_rollback_overwrites_nothing(engine: sql.Engine) -> None:
    job = Job(engine).start()
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


def test_the_detector_goes_on_from_where_the_run_was_and_is_not_blind(engine: sql.Engine) -> None:
    """A spike a few steps after a rollback or a restart is seen by the warm baseline."""
    job = Job(engine).start()
    job.train(1, 320)
    new = Job(engine, attempt=SECOND, age_s=0.0)
    new.start(SegmentPoint(SegmentId(FIRST, 0), 250))
    new.train(251, 280, spiking(258))
    assert rows(engine, "select onset_step, attempt, segment from incidents") == [(258, 2, 0)]
