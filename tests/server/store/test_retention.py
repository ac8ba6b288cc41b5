"""Retention: curves that are past their time go, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import sqlalchemy as sql

from spikeguard_protocol import LayerNorms, RunId
from spikeguard_server.ingest.detection import freeze, load_detection
from spikeguard_server.jobs.ticker import let_go
from spikeguard_server.settings import Settings
from spikeguard_server.store.deleted_runs import drop_curves
from spikeguard_server.store.tables.core import run_key
from tests.agent.wire import await_that
from tests.server.store.jobs import SECOND, Job, drawn, execute, rows, spiking, value

MONTH = Settings(keep_samples_days=30.0)


def age(engine: sql.Engine, days: int) -> None:
    """Let every attempt have said its last `days` ago."""
    execute(
        engine,
        f"update attempts set last_message_at = last_message_at - interval '{days} days',"
        f" curves_dropped_at = curves_dropped_at - interval '{days} days'",
    )


def knows(engine: sql.Engine, run: str) -> bytes:
    """The detector as a replica finds it that has never heard of the run."""
    with engine.connect() as connection:
        key = run_key(RunId("default", run))
        return freeze(load_detection(connection, key).monitor)


def calm(engine: sql.Engine, run: str = "gpt") -> Job:
    job = Job(engine, run=run).start()
    job.train(1, 400, batch=50)
    return job


def trained(engine: sql.Engine) -> Job:
    job = Job(engine).start()
    job.train(1, 400, spiking(251, length=40), batch=50)
    job.send(*(LayerNorms(0, step, "grad_norm", {"a": 1.0}) for step in (20, 270)))
    return job


def test_old_samples_go_and_those_of_incidents_and_the_audit_stay(engine: sql.Engine) -> None:
    trained(engine)
    kept = "select min(step), max(step), count(*), max(loss) from incident_samples"
    before, audited = rows(engine, kept), value(engine, "select count(*) from audit")
    first, last, count, _ = before[0]
    assert count == last - first + 1
    assert 50 < count < 390
    age(engine, 35)
    let_go(engine, MONTH)
    assert rows(engine, kept) == before
    beyond = f"step not between {first} - 49 and {last} + 49"  # a message has 50 steps
    assert value(engine, f"select count(*) from samples where {beyond}") == 0
    assert rows(engine, "select step from layer_norms") == [(270,)]
    assert value(engine, "select count(*) from audit") == audited + 1
    dropped = "select before from audit where action = 'drop'"
    assert value(engine, dropped) == "samples of attempt 1"
    let_go(engine, MONTH)
    assert value(engine, "select count(*) from audit") == audited + 1
    assert drawn(engine)


def test_nothing_goes_of_an_attempt_that_speaks_and_all_of_one_that_does_not(
    engine: sql.Engine,
) -> None:
    job = calm(engine)
    age(engine, 35)
    other = Job(engine, attempt=SECOND).start()
    other.train(1, 10)
    let_go(engine, MONTH)
    assert rows(engine, "select attempt, count(*) from samples group by 1") == [(2, 10)]
    age(engine, 35)
    job.train(401, 410)
    let_go(engine, MONTH)
    assert rows(engine, "select attempt, count(*) from samples group by 1") == [(1, 10)]


HOLD = """
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;
CREATE TRIGGER hold AFTER {what} FOR EACH ROW EXECUTE FUNCTION hold()
"""


@contextmanager
def held_up(engine: sql.Engine, what: str) -> Iterator[ThreadPoolExecutor]:
    """Threads, of which each that does `what` waits until this ends."""
    execute(engine, HOLD.format(what=what))
    with ThreadPoolExecutor() as pool, engine.begin() as gate:
        gate.execute(sql.text("select pg_advisory_xact_lock(7)"))
        yield pool


def until_waiting(engine: sql.Engine, lock: str) -> None:
    """Until somebody waits for a lock of this type."""
    query = f"select count(*) from pg_locks where not granted and locktype = '{lock}'"
    await_that(lambda: value(engine, query))


def test_a_message_that_is_written_while_its_samples_are_to_go_keeps_them(
    engine: sql.Engine,
) -> None:
    """It had written, and not committed, when the attempt was found to be quiet."""
    job = calm(engine)
    age(engine, 35)

    def drop() -> None:
        with engine.begin() as connection:
            drop_curves(connection, run_key(RunId("default", "gpt")), 1, 30.0)

    with held_up(engine, "UPDATE ON attempts") as pool:
        message = pool.submit(job.train, 401, 410)
        until_waiting(engine, "advisory")
        dropped = pool.submit(drop)
        until_waiting(engine, "transactionid")
    assert message.result().sequence == job.sequence
    dropped.result()
    assert value(engine, "select count(*) from samples") == 410


def test_nothing_goes_unless_it_is_asked_for(engine: sql.Engine) -> None:
    calm(engine)
    age(engine, 700)
    let_go(engine, Settings())
    assert value(engine, "select count(*) from samples") == 400


def test_a_run_that_comes_back_later_is_taken_and_its_detector_knows_it(engine: sql.Engine) -> None:
    """What the detector knew outlives the samples."""
    job = calm(engine)
    age(engine, 35)
    let_go(engine, MONTH)
    assert value(engine, "select count(*) from samples") == 0
    assert value(engine, "select min(step - state_step) from detector_states") == 0
    job.monitors = None
    job.train(401, 420, batch=50)
    assert value(engine, "select count(*) from samples") == 20
    other = calm(engine, "other")
    other.train(401, 420, batch=50)
    assert knows(engine, "gpt") == knows(engine, "other")
