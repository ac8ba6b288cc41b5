"""Runs deleted, by HTTP, the client and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sql

from spikeguard_cli.main import main
from spikeguard_client import ApiError, Client
from spikeguard_protocol import AttemptEnded, Role
from spikeguard_server.store.tables.core import metadata, run_key
from tests.server.face.conftest import Job, Live

DENIED = "the sweep is over"


def end(job: Job) -> Job:
    job.send(AttemptEnded("finished"))
    return job


def listed(live: Live, job: Job) -> bool:
    with live.client(Role.VIEWER) as viewer:
        found = viewer.get("/v1/runs", params={"limit": 1000}).json()["items"]
        return job.run in {run["name"] for run in found}


def test_a_run_is_not_deleted_while_an_attempt_of_it_lives(live: Live, job: Job) -> None:
    with live.client(Role.ADMIN) as admin:
        refused = admin.delete(job.path, params={"reason": "x"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["attempt"]) == (409, "still_training", 1)
    job.train(5)
    assert listed(live, job)


def rows_of(live: Live, job: Job) -> dict[str, int]:
    """Rows that speak of the run, by table."""
    key = run_key(job.id)
    with live.engine.connect() as connection:
        counts = {
            table.name: connection.scalar(
                sql.select(sql.func.count()).select_from(table).where(table.c.run_id == key)
            )
            for table in metadata.tables.values()
            if "run_id" in table.c
        }
    return {name: int(count) for name, count in counts.items() if count}


def test_a_deleted_run_leaves_nothing_but_its_record_and_its_part_in_the_counters(
    live: Live, job: Job
) -> None:
    end(job.spike())
    job.reported()  # what it asks for stands in the record
    before = rows_of(live, job)
    assert {"chunks", "incidents", "commands", "detector_states"} <= before.keys()
    with live.client(Role.ADMIN) as admin, live.client(Role.OPERATOR) as operator:
        assert operator.delete(job.path, params={"reason": "x"}).status_code == 403
        unsaid = admin.delete(job.path)
        assert (unsaid.status_code, unsaid.json()["error"]["field"]) == (422, "reason")
        assert admin.delete(job.path, params={"reason": DENIED}).status_code == 204
        left = rows_of(live, job)
        assert left == {"audit": before["audit"] + 1, "deleted_runs": 1}
        assert admin.get(job.path).status_code == 404
        assert admin.get(f"{job.path}/series").status_code == 404
        entries = admin.get(f"{job.path}/audit").json()["items"]
        beside = admin.get("/v1/audit", params={"limit": 1}).json()["items"]
    assert len(entries) == before["audit"] + 1
    for entry in (entries[0], beside[0]):
        assert (entry["action"], entry["subject"], entry["reason"]) == ("deleted", job.run, DENIED)
    assert not listed(live, job)


def test_a_run_that_begins_under_a_deleted_ones_name_has_none_of_its_ids(
    live: Live, job: Job
) -> None:
    """Whatever a server process kept of the deleted one counts for nothing."""
    end(job.spike())
    former = job.incident()["number"]
    with live.client(Role.ADMIN) as admin:
        admin.delete(job.path, params={"reason": DENIED})
        again = type(job)(live, job.run).start()
        assert admin.get(job.path).json()["incidents"] == former
        again.spike()
        found = admin.get(job.path).json()
        steps = admin.get(f"{job.path}/series").json()["segments"]
    assert again.incident()["number"] == former + 1
    assert [attempt["number"] for attempt in found["attempts"]] == [2]
    assert len(steps) == 1
    assert rows_of(live, job)["deleted_runs"] == 1


@contextmanager
def logged_in(
    live: Live, role: Role, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """The command line of a person who logged in."""
    token = tmp_path / "token"
    token.write_text(live.tokens[role])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = ("--server", live.url, "--name", "Ada Lovelace", "--token-file", str(token))
    assert main(("login", *words)) == 0
    yield


def test_the_command_line_and_the_client_delete_runs(
    live: Live,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    end(job)
    run = job.id
    with logged_in(live, Role.ADMIN, monkeypatch, tmp_path), live.person("Grace", Role.ADMIN) as g:
        client = Client(live.url, g.headers["authorization"].split()[1])
        assert main(("delete", job.run, "--reason", DENIED)) == 1  # nobody typed the name
        assert main(("delete", job.run, "--reason", DENIED, "--yes")) == 0
        with pytest.raises(ApiError, match="no run"):
            client.delete_run(run, DENIED)
        capsys.readouterr()
        assert main(("audit", job.run)) == 0
        assert DENIED in capsys.readouterr().out
