"""A policy of one run's own: in force there, whole, audited, and named by what it proposes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spikeguard_cli.main import main
from spikeguard_protocol import Role

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live

OWN = {"act_confidence": 0.55, "approval": {"rollback": {"mode": "auto"}}}


def path(run: str) -> str:
    return f"/v1/runs/default/{run}/policy"


def test_what_a_run_does_not_say_is_what_its_project_says(live: Live, job: Job) -> None:
    with live.person("Root", Role.ADMIN) as admin:
        put = admin.put(path(job.run), json={"policy": OWN, "version": 0})
        assert put.status_code == 200, put.text
        told = put.json()
        assert (told["scope"], told["version"], told["created_by"]) == ("run", 1, "Root")
        policy = told["policy"]
        assert policy["act_confidence"] == 0.55
        assert policy["approval"]["rollback"]["mode"] == "auto"
        assert policy["approval"]["watch"]["mode"] == "auto"  # the project's
        assert admin.get("/v1/policy").json()["scope"] == "project"


def test_versions_count_on_and_a_stale_one_is_a_conflict(live: Live, job: Job) -> None:
    with live.client(Role.ADMIN) as admin:
        assert admin.put(path(job.run), json={"policy": {}, "version": 1}).status_code == 409
        assert admin.put(path(job.run), json={"policy": {}}).json()["version"] == 1
        assert admin.put(path(job.run), json={"policy": OWN, "version": 1}).json()["version"] == 2
        stale = admin.put(path(job.run), json={"policy": {}, "version": 1})
        assert (stale.status_code, stale.json()["error"]["current"]) == (409, 2)
        left = admin.delete(path(job.run)).json()
        assert left["scope"] == "project"
        assert admin.delete(path(job.run)).status_code == 404
        assert admin.put(path(job.run), json={"policy": OWN, "version": 0}).json()["version"] == 4


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
