"""Partitions by week: what is past its time goes by whole partitions, and nothing else does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta

import sqlalchemy as sql

from spikeguard_protocol import LayerNorms, RunId, SegmentId, SegmentPoint
from spikeguard_server.ingest.detection import freeze, load_detection
from spikeguard_server.jobs.housekeeping import let_go
from spikeguard_server.settings import Settings
from spikeguard_server.store.partitions import (
    drop_partitions,
    make_partitions,
)
from spikeguard_server.store.tables.core import run_key
from tests.agent.wire import await_that
from tests.server.store.jobs import FIRST, SECOND, Job, execute, rows, spiking, value

MONTH = Settings(keep_samples_days=30.0)


def this_week(engine: sql.Engine) -> date:
    found = value(engine, "select max(starts) from weeks")
    assert isinstance(found, date)
    return found


def age(engine: sql.Engine, days: int) -> date:
    """Let everything have happened `days` (whole weeks) ago, in the partitions of that week."""
    assert days % 7 == 0
    old, new = this_week(engine), this_week(engine) - timedelta(days=days)
    with engine.begin() as connection:
        for table in ("chunks", "layer_norms"):
            part, moved = f"{table}_{old:%Y%m%d}", f"{table}_{new:%Y%m%d}"
            for statement in (
                f"alter table {table} detach partition partitions.{part}",
                f"alter table partitions.{part} rename to {moved}",
                f"update partitions.{moved} set week = '{new}'",
                f"alter table {table} attach partition partitions.{moved} for values in ('{new}')",
            ):
                connection.execute(sql.text(statement))
        for statement in (
            f"update weeks set starts = '{new}'",
            f"update segments set week = '{new}'",
            f"update attempts set last_message_at = last_message_at - interval '{days} days'",
        ):
            connection.execute(sql.text(statement))
        make_partitions(connection)
    return new


def parts(engine: sql.Engine) -> set[str]:
    query = "select relname from pg_class where relnamespace = 'partitions'::regnamespace"
    return {row[0] for row in rows(engine, f"{query} and relkind = 'r'")}


def knows(engine: sql.Engine, run: str) -> bytes:
    """The detector as a replica finds it that has never heard of the run."""
    with engine.connect() as connection:
        key = run_key(RunId("default", run))
        return freeze(load_detection(connection, key, None).monitor)


def trained(engine: sql.Engine) -> Job:
    job = Job(engine).start()
    job.train(1, 400, spiking(251, length=40), batch=50)
    job.send(LayerNorms(0, 400, "grad_norm", {"a": 1.0}))
    return job


def test_old_samples_go_and_incidents_and_audit_stay(engine: sql.Engine) -> None:
    trained(engine)
    kept = "select count(*), max(loss) from incident_samples"
    before, audited = rows(engine, kept), value(engine, "select count(*) from audit")
    week = age(engine, 35)
    let_go(engine, MONTH)
    assert value(engine, "select count(*) from samples") == 0
    assert f"chunks_{week:%Y%m%d}" not in parts(engine)
    assert rows(engine, kept) == before
    assert before[0][0] > 0
    assert value(engine, "select count(*) from layer_norms") == 0
    assert value(engine, "select count(*) from audit") == audited + 1
    assert value(engine, "select subject from audit where action = 'drop'") == f"samples of {week}"


def test_nothing_goes_while_an_attempt_of_that_week_speaks(engine: sql.Engine) -> None:
    job = trained(engine)
    age(engine, 35)
    job.train(401, 410)
    let_go(engine, MONTH)
    assert value(engine, "select count(*) from samples") == 410


HOLD = """
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;
CREATE TRIGGER hold AFTER UPDATE ON attempts FOR EACH ROW EXECUTE FUNCTION hold()
"""


def until_waiting(engine: sql.Engine, lock: str) -> None:
    """Until somebody waits for a lock of this type."""
    query = f"select count(*) from pg_locks where not granted and locktype = '{lock}'"
    await_that(lambda: value(engine, query))


def test_a_message_that_is_written_while_its_partition_is_to_go_keeps_it(
    engine: sql.Engine,
) -> None:
    """It had written, and not committed, when the week was found to be out of use."""
    job = trained(engine)
    week = age(engine, 35)
    execute(engine, HOLD)

    def drop() -> bool:
        with engine.begin() as connection:
            return drop_partitions(connection, week, 30.0)

    with ThreadPoolExecutor() as pool:
        with engine.begin() as gate:
            gate.execute(sql.text("select pg_advisory_xact_lock(7)"))
            message = pool.submit(job.train, 401, 410)
            until_waiting(engine, "advisory")
            dropped = pool.submit(drop)
            until_waiting(engine, "relation")
        assert message.result().sequence == job.sequence
        assert dropped.result() is False
    assert value(engine, "select count(*) from samples") == 410


def test_nothing_goes_unless_it_is_asked_for(engine: sql.Engine) -> None:
    trained(engine)
    age(engine, 700)
    let_go(engine, Settings())
    assert value(engine, "select count(*) from samples") == 400


def test_a_run_that_comes_back_later_is_taken_and_its_detector_knows_it(engine: sql.Engine) -> None:
    """Its new steps lie in the newest week, and what the detector knew outlives the samples."""
    job = trained(engine)
    age(engine, 35)
    let_go(engine, MONTH)
    assert value(engine, "select min(step - state_step) from detector_states") == 0
    job.monitors = None
    job.train(401, 420, batch=50)
    job.send(LayerNorms(0, 420, "grad_norm", {"a": 1.0}))
    assert value(engine, "select count(*) from samples") == 20
    other = Job(engine, run="other").start()
    other.train(1, 400, spiking(251, length=40), batch=50)
    other.train(401, 420, batch=50)
    assert knows(engine, "gpt") == knows(engine, "other")
    new = Job(engine, attempt=SECOND, age_s=0.0)
    new.start(SegmentPoint(SegmentId(FIRST, 0), 420))
    new.train(421, 430)
    assert value(engine, f"select distinct week = '{this_week(engine)}' from chunks") is True
