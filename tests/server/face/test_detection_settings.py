"""Policies and settings of detection, by project, run and signal: from the next sample on."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from spikeguard_cli.main import main
from spikeguard_protocol import Role
from tests.server.face.conftest import Job, Live

DEAF = {"threshold": 900, "lift_threshold": 1e6, "slow_rise": 1e6}


def put(live: Live, job: Job, detection: dict[str, Any]) -> None:
    with live.person("Root", Role.ADMIN) as admin:
        path = f"{job.path}/policy"
        answer = admin.put(path, json={"policy": {"detection": detection}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["policy"]["detection"].items() >= detection.items()


def incidents(live: Live, job: Job) -> list[dict[str, Any]]:
    with live.client(Role.VIEWER) as viewer:
        found = viewer.get("/v1/incidents", params={"run": f"{job.project}/{job.run}"}).json()
        paths = [f"{job.path}/incidents/{one['number']}" for one in found["items"]]
        return [viewer.get(path).json() for path in paths]


def test_a_threshold_counts_from_the_next_sample_and_the_baseline_stays(
    live: Live, job: Job
) -> None:
    """Deaf at first; after the change the very next rows are judged by what was learnt before."""
    put(live, job, DEAF)
    job.train(300)
    job.train(3, excess=0.5)
    assert incidents(live, job) == []
    job.train(40)
    put(live, job, {"threshold": 6, "lift_threshold": 3.5, "slow_rise": 0.05})
    job.train(3, excess=0.5)
    (incident,) = incidents(live, job)
    assert incident["onset_step"] == 344


def test_a_run_is_judged_by_the_settings_and_the_band_of_its_policy(live: Live, job: Job) -> None:
    put(live, job, {"threshold": 40, "confirm_rows": 1, "lift_threshold": 1e6, "band": 4.5})
    job.train(300)
    job.train(2, excess=0.1)
    assert incidents(live, job) == []
    job.train(1, excess=0.9)
    (incident,) = incidents(live, job)
    assert incident["onset_step"] == 303  # one row is enough
    trend = incident["trend"]
    assert trend["band"] == 4.5
    with live.client(Role.VIEWER) as viewer:
        path = f"{job.path}/incidents/{incident['number']}/series"
        series = viewer.get(path).json()
        assert series["trend"] == trend


@pytest.mark.parametrize(
    ("detection", "field", "says"),
    [
        ({"treshold": 5}, "detection.treshold", "threshold"),
        ({"threshold": 1}, "detection.threshold", "lies in [2, 1000] deviations"),
        ({"detector": "ewma"}, "detection.detector", "threshold"),
        ({"signals": {"loss": {"precursor_threshold": 9}}}, "detection.signals.loss", "threshold"),
        (
            {"signals": {"grad_norm": {"precursor_threshold": 1}}},
            "detection.signals.grad_norm.precursor_threshold",
            "lies in [2, 1000] deviations",
        ),
        (
            {"signals": {"own": {}}},
            "detection.signals.own",
            "above, below, direction, opens, precursor_threshold, rows",
        ),
        ({"signals": {"own": {"direction": "left"}}}, "signals.own.direction", "up, down, both"),
        (
            {"signals": {"own": {"direction": "up", "opens": "door"}}},
            "signals.own.opens",
            "nothing, precursor, incident",
        ),
        ({"signals": {"own": {"precursor_threshold": 9}}}, "signals.own.direction", "None"),
        ({"signals": {"a b": {"direction": "up"}}}, "detection.signals.a b", "is no name"),
        ({"signals": {"grad_norm": {"direction": "up"}}}, "signals.grad_norm", "threshold"),
        (
            {"signals": {f"own_{n}": {"direction": "up"} for n in range(17)}},
            "detection.signals",
            "at most 16",
        ),
        ([], "detection", "table"),
    ],
)
def test_a_wrong_setting_is_refused_with_field_limit_and_remedy(
    live: Live, detection: object, field: str, says: str
) -> None:
    with live.person("Root", Role.ADMIN) as admin:
        body = {"project": "default", "policy": {"detection": detection}}
        answer = admin.put("/v1/policy", json=body)
    assert answer.status_code == 422
    assert field in answer.text
    assert says in answer.text


def test_a_leading_signal_has_a_threshold_of_its_own(live: Live, job: Job) -> None:
    put(live, job, {"signals": {"grad_norm": {"precursor_threshold": 900}}})
    job.train(300, update_norm=1.0)
    job.send(_with(job, grad_norm=1.0, update_norm=3.0))
    with live.client(Role.VIEWER) as viewer:
        warned = {one["signal"] for one in viewer.get(job.path).json()["precursors"]}
    assert "grad_norm" not in warned
    assert "update_norm" in warned


def test_a_signal_of_the_users_own_warns_from_the_next_sample_after_the_policy_names_it(
    live: Live, job: Job
) -> None:
    """Judged from when it was named: in the audit, among the run's precursors, and no incident."""
    job.train(100, router_entropy=1.7)
    put(live, job, {"signals": {"router_entropy": {"direction": "down"}}})
    job.train(300, router_entropy=1.7)
    job.send(_with(job, router_entropy=2.9))
    job.send(_with(job, router_entropy=0.4))
    with live.client(Role.VIEWER) as viewer:
        (warned,) = viewer.get(job.path).json()["precursors"]
        audit = viewer.get(f"{job.path}/audit").json()["items"]
    assert (warned["signal"], warned["value"]) == ("router_entropy", 0.4)
    assert incidents(live, job) == []
    fields = [change["field"] for entry in audit for change in entry.get("changes") or ()]
    assert any(name.startswith("detection.signals") for name in fields)


def test_a_limit_in_the_signals_own_unit_opens_an_incident_after_so_many_rows(
    live: Live, job: Job
) -> None:
    limit = {"above": 0.5, "rows": 3, "opens": "incident"}
    put(live, job, {"signals": {"dropped_tokens": limit}})
    job.train(20, dropped_tokens=0.1)
    job.send(_with(job, dropped_tokens=0.6))
    (incident,) = incidents(live, job)
    assert "dropped_tokens is 0.6, above its limit of 0.5" in incident["reason"]


def _with(job: Job, **signals: float) -> Any:
    """Four more steps, on which the loss stays calm and the norms do not."""
    samples = job.steps(4)
    columns = {**samples.signals, **{name: (value,) * 4 for name, value in signals.items()}}
    return type(samples)(samples.segment, samples.steps, columns, samples.positions)


OWN = {"act_confidence": 0.55, "approval": {"rollback": {"mode": "auto"}}}


def path(run: str) -> str:
    return f"/v1/runs/default/{run}/policy"


def test_what_a_run_does_not_say_is_what_its_project_says(live: Live, job: Job) -> None:
    with live.person("Root", Role.ADMIN) as admin:
        put = admin.put(path(job.run), json={"policy": OWN})
        assert put.status_code == 200, put.text
        told = put.json()
        assert (told["scope"], told["version"], told["created_by"]) == ("run", 1, "Root")
        policy = told["policy"]
        assert policy["act_confidence"] == 0.55
        assert policy["approval"]["rollback"]["mode"] == "auto"
        assert policy["approval"]["watch"]["mode"] == "auto"  # the project's
        assert admin.get("/v1/policy").json()["scope"] == "project"


def test_versions_count_on_where_a_run_follows_its_project_in_between(live: Live, job: Job) -> None:
    with live.client(Role.ADMIN) as admin:
        assert admin.put(path(job.run), json={"policy": {}}).json()["version"] == 1
        assert admin.put(path(job.run), json={"policy": OWN}).json()["version"] == 2
        left = admin.delete(path(job.run)).json()
        assert left["scope"] == "project"
        assert admin.delete(path(job.run)).status_code == 404
        assert admin.put(path(job.run), json={"policy": OWN}).json()["version"] == 4


def test_a_wrong_field_is_named_and_changes_nothing(live: Live, job: Job) -> None:
    with live.client(Role.ADMIN) as admin:
        for policy, field in (
            ({"act_confidence": 2.0}, "act_confidence"),
            ({"approval": {"fly": {}}}, "approval.fly"),
            ({"approval": 3}, "approval"),
            ({"scope": "run"}, "scope"),
        ):
            wrong = admin.put(path(job.run), json={"policy": policy})
            assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, field)
        assert admin.get(path(job.run)).json()["scope"] == "project"


def test_a_proposal_names_the_runs_policy_and_the_audit_who_wrote_it(live: Live, job: Job) -> None:
    with live.person("Root", Role.ADMIN) as admin:
        usual = admin.get("/v1/policy").json()["version"]
        assert admin.put(path(job.run), json={"policy": OWN}).status_code == 200
        for _ in range(4):
            job.send(job.steps(100), job.saved())
        for _ in range(8):
            job.train(10, excess=3.0)
        incident = admin.get(f"/v1/runs/default/{job.run}/incidents/1").json()
        command = next(c for c in incident["commands"] if c["verb"] == "rollback")
        assert (command["policy_version"], command["policy_scope"]) == (1, "run")
        assert (command["state"], command["decided_by"]) == ("delivered", "policy 1 of the run")
        audit = admin.get(f"/v1/runs/default/{job.run}/audit", params={"limit": 1000}).json()
    found = {
        (entry["actor"], entry["action"], entry["before"], entry["after"])
        for entry in audit["items"]
    }
    assert ("Root", "policy.written", f"policy {usual}", "policy 1 of the run") in found
    assert any(
        actor == "policy 1 of the run" and action == "propose" for actor, action, *_ in found
    )


def test_the_kill_switch_stays_the_projects(live: Live, job: Job) -> None:
    switch = {"project": "default", "reason": "a bad checkpoint went round"}
    with live.person("Root", Role.ADMIN) as admin:
        wanted = {"policy": {**OWN, "halted": True}}
        assert admin.put(path(job.run), json=wanted).json()["policy"]["halted"] is False
        assert admin.post("/v1/policy/halt", json=switch).status_code == 200
        try:
            assert admin.put(path(job.run), json={"policy": OWN}).status_code == 200
            assert admin.get(path(job.run)).json()["policy"]["halted"] is True
        finally:
            assert admin.post("/v1/policy/resume", json=switch).status_code == 200
        assert admin.get(path(job.run)).json()["policy"]["halted"] is False


def test_the_command_writes_shows_and_drops_the_policy_of_a_run(
    live: Live,
    job: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPIKEGUARD_SERVER", live.url)
    monkeypatch.setenv("SPIKEGUARD_TOKEN", live.tokens[Role.ADMIN])
    file = tmp_path / "own.toml"
    file.write_text("price_per_hour = 7.5\n")
    assert main(["policy", "import", str(file), "--run", job.run]) == 0
    assert "policy 1 of the run is in force" in capsys.readouterr().out
    assert main(["policy", "show", "--run", job.run]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# policy 1 of the run\n")
    assert tomllib.loads(shown)["price_per_hour"] == 7.5
    assert main(["policy", "drop", "--run", job.run]) == 0
    assert "follows its project again" in capsys.readouterr().out
    assert main(["policy", "show", "--run", "never-heard-of"]) == 1
    assert "There is no run" in capsys.readouterr().err
