"""One thing that fails keeps nothing else from being done, and post-mortems keep nobody waiting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sql

from spikeguard_server.access.grants import put_policy
from spikeguard_server.jobs.housekeeping import tidy
from spikeguard_server.jobs.postmortems import settle_postmortems
from spikeguard_server.jobs.ticker import Ticker
from spikeguard_server.settings import Settings
from spikeguard_server.store.reports import DueReport, claim_report, due_reports
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


def claimed(engine: sql.Engine, for_s: float) -> DueReport:
    """The one post-mortem that is due, claimed as a replica does."""
    with engine.begin() as connection:
        [due] = due_reports(connection, 10)
        claim = claim_report(connection, due, for_s)
        assert claim is not None
        assert claim_report(connection, due, for_s) is None
    return claim


def until_true(engine: sql.Engine, query: str) -> None:
    await_that(lambda: value(engine, query))


@pytest.mark.parametrize("broken", ["a", "b"])
def test_what_fails_in_housekeeping_does_not_keep_the_rest_from_being_done(
    engine: sql.Engine, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one run's snapshots those of another, nor partitions what is no part of them.

    Tidied for either run, since nobody says which comes first.
    """
    monkeypatch.setattr("spikeguard_server.ingest.records.SNAPSHOT_STEPS", 10)
    for name in ("a", "b"):
        job = Job(engine, run=name)
        job.start()
        job.train(1, 100, save_every=1000)
    bad = value(engine, f"select run_id from runs where name = '{broken}'")
    execute(
        engine,
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$",
        "create trigger refuse before delete on detector_snapshots for each row"
        f" when (old.run_id = '{bad}') execute function refuse()",
        "alter table weeks rename to hidden",
        "insert into tokens (role, hash, created_at, created_by, expires_at, parent)"
        " values ('viewer', 'x', now(), 'Ada', now() - interval '90 days', 1)",
    )
    monkeypatch.setattr("spikeguard_server.store.detectors.SNAPSHOTS_KEPT", 3)
    tidy(engine, Settings(keep_deliveries_days=30.0))
    left = "select name, count(*) from detector_snapshots join runs using (run_id) group by name"
    whole = {"a": "b", "b": "a"}[broken]
    assert {str(name): count for name, count in rows(engine, left)} == {broken: 11, whole: 3}
    assert value(engine, "select count(*) from tokens") == 0


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
        execute(spiked, "update escalations set next_at = now()")
        until_true(spiked, "select count(*) = 1 from audit where action = 'escalate'")
        assert value(spiked, "select count(*) from incidents where report_due_at is not null") > 50
        assert ticker.alive
    finally:
        ticker.stop()
    assert not ticker.alive


def test_replicas_share_post_mortems_and_settle_each_once(spiked: sql.Engine) -> None:
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


def test_a_post_mortem_whose_replica_died_is_settled_by_another(spiked: sql.Engine) -> None:
    recovered(spiked)
    claimed(spiked, 60.0)
    settle_postmortems(spiked)
    assert not value(spiked, SETTLED)
    execute(spiked, "update incidents set report_due_at = report_due_at - interval '60 seconds'")
    settle_postmortems(spiked)
    assert value(spiked, SETTLED)
