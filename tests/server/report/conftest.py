"""Four incidents as the server has them when they have closed."""

from __future__ import annotations

import math

import pytest
import sqlalchemy as sql

from spikeguard_protocol import RunId, SegmentId, SegmentPoint
from spikeguard_server.ingest.decisions import decide
from spikeguard_server.jobs.postmortems import postmortem_facts
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import database_now, open_engine
from spikeguard_server.store.runs import lock_run
from spikeguard_server.store.tables.core import run_key
from tests.server.conftest import Databases
from tests.server.store.jobs import FIRST, SECOND, Curve, Job, healthy
from tests.server.store.test_commands import ONSET, waiting


def told(databases: Databases, damaged: Curve, *, undone: bool) -> PostMortem:
    """A run with losses of `damaged` until a person agrees to the rollback or it heals."""
    with databases.lent() as url:
        engine = open_engine(Settings(database_url=url))
        job = Job(engine).start()
        job.train(1, 400, batch=100)
        job.train(ONSET, 560, damaged, batch=40)
        if undone:
            _, command, revision = waiting(engine)
            decide(engine, command, "approve", revision, "mara.lindqvist")
            job.train(561, 570, damaged)
            job.roll_back(str(command), 300, at_step=570, position=300)
            job.train(301, 1_100, segment=1, shift=20, batch=100)
        else:
            job.train(561, 1_100, batch=100)
        facts = facts_of(engine)
        engine.dispose()
    return facts


def facts_of(engine: sql.Engine) -> PostMortem:
    """What is known of the first incident."""
    with engine.begin() as connection:
        run = lock_run(connection, run_key(RunId("default", "gpt")))
        assert run is not None
        return postmortem_facts(connection, run, 1, database_now(connection))


@pytest.fixture(scope="session")
def restarted(databases: Databases) -> PostMortem:
    """A divergence up to step 620, ended by a start of the job from the checkpoint of step 300."""
    with databases.lent() as url:
        engine = open_engine(Settings(database_url=url))
        job = Job(engine).start()
        job.train(1, 400, batch=100)
        job.train(ONSET, 620, lambda step: healthy(step) + 0.02 * (step - ONSET), batch=20)
        second = Job(engine, attempt=SECOND).start(SegmentPoint(SegmentId(FIRST, 0), 300))
        second.train(301, 900, batch=100)
        facts = facts_of(engine)
        engine.dispose()
    return facts


@pytest.fixture(scope="session")
def healed(databases: Databases) -> PostMortem:
    """A spike that decays by itself within some 60 steps."""
    return told(
        databases, lambda step: healthy(step) + 2.4 * math.exp((ONSET - step) / 18), undone=False
    )


@pytest.fixture(scope="session")
def rolled_back(databases: Databases) -> PostMortem:
    """Damage that stays, rolled back after a person agreed."""
    return told(
        databases,
        lambda step: healthy(step) + 0.42 + 1.3 * math.exp((ONSET - step) / 9),
        undone=True,
    )


@pytest.fixture(scope="session")
def broken(databases: Databases) -> PostMortem:
    """A loss that climbs and turns into NaN until it is rolled back."""

    def climbing(step: int) -> float:
        return math.nan if step > ONSET + 45 else healthy(step) + 0.2 + 0.09 * (step - ONSET)

    return told(databases, climbing, undone=True)
