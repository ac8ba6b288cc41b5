"""What Prometheus reads, and that it can read it."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.reference.metrics import everything
from spikeguard_core.policy.settings import ApprovalMode, ApprovalRule, Policy, policy_to_mapping
from spikeguard_protocol import AttemptEnded, CommandId, Medium, Role, Rollback, TargetSaved, Verb
from spikeguard_server.access.grants import put_policy
from spikeguard_server.ingest.decisions import decide
from spikeguard_server.jobs.postmortems import count_closed
from spikeguard_server.metrics import MAX_RUNS, Fleet, Metrics
from spikeguard_server.settings import Settings
from spikeguard_server.store.reads.fleet import read_fleet
from tests.agent.wire import await_that
from tests.server.face.conftest import Job, Live
from tests.server.store import jobs as store_jobs
from tests.server.store.test_housekeeping import pass_time


def scrape(live: Live, path: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Every sample by its name and labels, as Prometheus parses it."""
    with live.client(Role.METRICS) as client:
        answer = client.get(path)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_this_process_counts_what_it_took_by_call_and_not_by_path(live: Live, job: Job) -> None:
    before = scrape(live, "/metrics")["spikeguard_ingest_samples_total"][()]
    job.train(7)
    with live.client() as client:
        client.get("/no/such/place/42")
        client.request("BREW", "/v1/runs")
    after = scrape(live, "/metrics")
    assert after["spikeguard_ingest_samples_total"][()] == before + 7
    assert after["spikeguard_ticker_up"][()] == 1
    requests = after["spikeguard_http_requests_total"]
    routes = {dict(labels)["route"] for labels in requests}
    assert {"/v1/messages", "unmatched"} <= routes
    assert not any("42" in route or job.run in route for route in routes)
    assert "BREW" not in {dict(labels)["method"] for labels in requests}


def test_the_fleet_shows_a_live_run_and_its_open_incident(live: Live, spiked: Job) -> None:
    del spiked
    mine = (("project", "default"), ("run", "spiked"))

    def open_in(fleet: Any) -> Any:
        return fleet if fleet.get("spikeguard_run_incident_open", {}).get(mine) == 1 else None

    # the numbers may be five seconds old
    fleet = await_that(lambda: open_in(scrape(live, "/metrics/fleet")))
    assert fleet["spikeguard_run_last_step"][mine] > 400
    assert fleet["spikeguard_run_z"][mine] > 3.0
    assert fleet["spikeguard_approvals_waiting"][()] >= 1
    assert sum(fleet["spikeguard_incidents_open"].values()) >= 1


def test_a_run_counts_as_out_of_budget_once_the_policy_has_approved_as_often_as_it_may(
    engine: sql.Engine,
) -> None:
    """The policy of `default` allows two automatic rollbacks a day; that of others none."""
    auto = ApprovalRule(ApprovalMode.AUTO, budget=2, cooldown_s=0.0)
    policy = replace(Policy(), approval={Verb.ROLLBACK: auto})
    with engine.begin() as connection:
        put_policy(connection, "default", policy_to_mapping(policy), "test")
    job = store_jobs.Job(engine).start()
    spent = []
    for segment in range(2):
        job.train(100 * segment + 1, 200, segment=segment, save_every=50)
        ack = job.train(201, 215, lambda _: float("nan"), segment=segment, batch=1)
        (order,) = ack.orders
        assert isinstance(order.action, Rollback)
        with engine.connect() as connection:
            spent.append(read_fleet(connection).budgets_spent)
        job.roll_back(order.command, 100, 215, segment=segment + 1, position=300)
    assert spent == [{}, {("default", "rollback"): 1}]
    assert job.train(201, 215, lambda _: float("nan"), segment=2, batch=1).orders == ()
    with engine.connect() as connection:  # the third waits for a person
        waiting = sql.text("select verb from commands where state = 'proposed'")
        assert connection.execute(waiting).scalars().all() == ["rollback"]


def test_what_an_incident_came_to_is_counted_once_however_often_its_post_mortem_is_written(
    engine: sql.Engine,
) -> None:
    """Detected, decided on, rolled back to a snapshot, recovered; then asked twice."""
    job = store_jobs.Job(engine).start()
    job.train(1, 160, save_every=100)
    ready = TargetSaved("memory-200", 0, 200, 200, Medium.MEMORY)
    job.send(store_jobs.columns(range(161, 201), store_jobs.healthy), ready)
    job.train(201, 320, save_every=10**6)
    job.train(321, 350, lambda _: math.nan, save_every=10**6)
    with engine.connect() as connection:
        [(number, at)] = connection.execute(
            sql.text("select revision, proposed_at from commands")
        ).all()
    command = CommandId.parse("default/gpt#1.1")
    decide(engine, command, "approve", number, "Ada", now=at + timedelta(seconds=40))
    [order] = job.send().orders
    assert isinstance(order.action, Rollback)
    assert order.action.target == "memory-200"
    job.roll_back(str(command), 200, 350, position=400)
    job.train(201, 560, segment=1, save_every=10**6)
    metrics = Metrics(CollectorRegistry())
    for _ in range(2):
        count_closed(engine, metrics.count_incident)
    found = _exposed(generate_latest(metrics.registry))
    mine = {"project": "default"}
    lost = found("spikeguard_lost_steps_total", **mine) or 0.0
    assert lost >= 150
    assert found("spikeguard_detection_delay_steps_count", **mine) == 1
    assert found("spikeguard_decision_delay_seconds_bucket", by="person", le="30.0", **mine) == 0
    assert found("spikeguard_decision_delay_seconds_bucket", by="person", le="60.0", **mine) == 1
    recovered = {"outcome": "recovered", **mine}
    assert found("spikeguard_recovery_duration_seconds_count", **recovered) == 1
    assert found("spikeguard_lost_seconds_total", **mine) == lost * 0.5


def _exposed(text: bytes) -> Callable[..., float | None]:
    """A series by its name and labels; None where there is none."""
    samples = [s for f in text_string_to_metric_families(text.decode()) for s in f.samples]
    found = {(s.name, frozenset(s.labels.items())): s.value for s in samples}
    return lambda name, **labels: found.get((name, frozenset(labels.items())))


def test_a_run_without_a_value_shows_none_and_one_with_nan_shows_it() -> None:
    text = _told({"last_step": 3, "last_loss": float("nan"), "last_grad_norm": None})
    assert 'spikeguard_run_loss_nats{project="p",run="r"} NaN' in text
    assert "spikeguard_run_grad_norm{" not in text
    assert 'spikeguard_run_loss_non_finite{project="p",run="r"} 1.0' in text
    finite = _told({"last_loss": 2.0})
    assert 'spikeguard_run_loss_non_finite{project="p",run="r"} 0.0' in finite
    assert "spikeguard_run_loss_non_finite{" not in _told({})


def test_the_number_of_series_is_bounded_and_the_operator_is_told_by_what() -> None:
    """Counted in what a fleet tells in which every run shows all it can."""
    full = {**everything().live[0], "own_z": None}
    runs = [{**full, "name": f"r-{n}"} for n in range(MAX_RUNS)]
    per_run, total = (len(_of_runs(_told(*shown))) for shown in ([full], runs))
    assert total == MAX_RUNS * per_run <= 5000
    text = (Path(__file__).parents[3] / "docs/alerts.md").read_text()
    assert f"{per_run} series a run" in text
    assert f"{MAX_RUNS} runs" in text
    assert f"{total:,} series" in text


def _told(*runs: dict[str, Any]) -> str:
    """What a fleet of these runs exposes."""
    live = [{"project": "p", "name": "r", **run} for run in runs]
    return generate_latest(Fleet(live=live)).decode()


def _of_runs(exposition: str) -> list[str]:
    """The lines that name a run."""
    return [line for line in exposition.splitlines() if 'run="' in line]


def test_a_run_that_crashed_of_its_spike_is_told_until_the_spike_is_closed_and_has_no_age(
    engine: sql.Engine,
) -> None:
    """So that whoever is called for a divergent run is called where the job died of it."""
    job = store_jobs.Job(engine).start()
    job.train(1, 400, batch=100)
    job.train(401, 420, lambda _: float("nan"), batch=10)
    job.send(AttemptEnded("crashed"))
    with engine.connect() as connection:
        fleet = read_fleet(connection)
    assert fleet.runs == {"ended": 1}
    told = generate_latest(fleet).decode()
    labels = '{incident="1",kind="divergent",project="default",run="gpt"}'
    assert f"spikeguard_run_incident_info{labels} 1.0" in told
    assert "spikeguard_run_data_age_seconds{" not in told
    assert pass_time(engine, Settings().ended_after_s + 1)
    with engine.connect() as connection:
        assert read_fleet(connection).live == ()


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not here")
def test_names_and_help_are_what_promtool_expects(live: Live, spiked: Job) -> None:
    del spiked
    with live.client(Role.METRICS) as metrics:
        for path in ("/metrics", "/metrics/fleet"):
            text = metrics.get(path).content
            checked = subprocess.run(
                ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=120
            )
            assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
