"""One thing that fails keeps nothing else from being done, and post-mortems keep nobody waiting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sql

from spikeguard_protocol import RunId
from spikeguard_server.access.grants import put_policy
from spikeguard_server.ingest.deletion import delete_run
from spikeguard_server.jobs import postmortems
from spikeguard_server.jobs.housekeeping import tidy
from spikeguard_server.jobs.postmortems import settle_postmortems
from spikeguard_server.jobs.ticker import Ticker
from spikeguard_server.settings import Settings
from tests.agent.wire import await_that
from tests.server.store.jobs import Job, execute, rows, spiking, value
from tests.server.store.test_aftermath import recovered

CLONED = ("incidents", "incident_revisions")
SETTLED = "select bool_or(reported_at is not null) from incidents"


def clone(engine: sql.Engine, until: int) -> None:
    """Incidents 2 to `until` of the run, each as its first was and with its post-mortem due."""
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


def test_what_fails_in_housekeeping_does_not_keep_the_rest_from_being_done(
    engine: sql.Engine,
) -> None:
    """Old samples cannot be looked for; what is left of a deleted run goes all the same."""
    job = Job(engine)
    job.start()
    job.train(1, 100)
    with engine.begin() as connection:
        delete_run(connection, RunId("default", "gpt"), "Ada", "a test", timedelta(0))
    execute(engine, "alter table attempts rename to hidden")
    assert value(engine, "select count(*) from samples") == 100
    tidy(engine, Settings(keep_samples_days=30.0))
    assert value(engine, "select count(*) from samples") == 0


def test_an_escalation_is_on_time_though_hundreds_of_post_mortems_are_due(
    spiked: sql.Engine,
) -> None:
    recovered(spiked)
    clone(spiked, 300)
    with spiked.begin() as connection:
        put_policy(connection, "default", {"escalation": [3600]}, "Ada")
    other = Job(spiked, run="other")
    other.start()
    other.train(1, 400, batch=100)
    other.train(401, 560, spiking(401), batch=40)
    ticker = Ticker(Settings(tick_s=0.05), spiked)
    ticker.start()
    try:
        until_true(spiked, SETTLED)
        execute(spiked, "update commands set escalates_at = now() where escalates_at is not null")
        until_true(spiked, "select count(*) = 1 from audit where action = 'escalate'")
        assert value(spiked, "select count(*) from incidents where report_due_at is not null") > 50
        assert ticker.alive
    finally:
        ticker.stop()
    assert not ticker.alive


def test_replicas_share_post_mortems_and_settle_each_once(
    spiked: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postmortems, "PASS_S", 60.0)  # a busy machine gets through a few in five
    recovered(spiked)
    clone(spiked, 4)
    execute(
        spiked,
        "create table written (incident int)",
        "create function log_it() returns trigger language plpgsql as"
        " $$ begin insert into written values (new.number); return new; end $$",
        "create trigger log_it after update on incidents for each row"
        " when (new.reported_at is distinct from old.reported_at) execute function log_it()",
    )
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(settle_postmortems, spiked) for _ in range(2)]:
            done.result()
    assert rows(spiked, "select * from written order by 1") == [(1,), (2,), (3,), (4,)]
    assert value(spiked, "select count(*) from incidents where report_due_at is not null") == 0
