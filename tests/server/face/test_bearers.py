"""A token is judged again with every message, by its project and by its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_cli.main import main
from spikeguard_protocol import AttemptStarted, Role, encode
from spikeguard_server.access.grants import Grant
from spikeguard_server.store.tables.core import attempts, run_key, runs
from tests.server.face.conftest import Job

if TYPE_CHECKING:
    from tests.server.face.conftest import Live


def test_a_revoked_token_works_for_not_one_message_more(live: Live, job: Job) -> None:
    secret = live.token(Grant(Role.AGENT))
    with live.bearing(secret) as agent, live.client(Role.ADMIN) as admin:
        message = encode(job.message())
        assert agent.post("/v1/messages", content=message).status_code == 200
        tokens = admin.get("/v1/tokens", params={"limit": 1}).json()["items"]
        assert admin.delete(f"/v1/tokens/{tokens[0]['id']}").status_code == 204
        refused = agent.post("/v1/messages", content=encode(job.message()))
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "not_signed_in"
    job.sequence -= 1
    assert job.send().sequence == job.sequence


def of_run(live: Live, run: str, project: str = "default") -> httpx.Client:
    """Calls with an agent's token that is good for one run."""
    return live.bearing(live.token(Grant(Role.AGENT, project, run=run)))


def told(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, field and remedy of a refusal."""
    error = answer.json()["error"]
    return answer.status_code, error["field"], error["remedy"]


def test_a_token_of_one_run_starts_and_writes_that_run_though_made_before_it(live: Live) -> None:
    job = Job(live, "of-one-run")
    with of_run(live, job.run) as agent:
        job.agents = agent
        job.start().train(5)
        me = agent.get("/v1/me").json()
    assert (me["project"], me["run"]) == ("default", job.run)


def test_a_token_of_one_run_changes_nothing_of_another_whose_attempt_it_knows(
    live: Live, job: Job
) -> None:
    job.train(5)
    before = rows_of(live, job)
    with of_run(live, f"{job.run}-x") as agent:
        for records in ((job.steps(3),), (), (AttemptStarted(None, 1, (), "forged"),)):
            refused = agent.post("/v1/messages", content=encode(job.message(*records)))
            assert told(refused)[:2] == (403, "run")
            job.sequence -= 1
        assert f"a token of run {job.run}" in told(refused)[2]
        takes_over = Job(live, job.run).message(AttemptStarted(None, 1, (), "forged"))
        assert agent.post("/v1/messages", content=encode(takes_over)).status_code == 403
    assert rows_of(live, job) == before
    assert job.send().sequence == job.sequence


def test_a_token_of_one_run_makes_no_other_run_nor_one_of_its_name_elsewhere(live: Live) -> None:
    with of_run(live, "mine", "one") as agent:
        for project, name, field in (("one", "theirs", "run"), ("two", "mine", "project")):
            other = Job(live, name, project)
            start = encode(other.message(AttemptStarted(None, 1, (), "test")))
            assert told(agent.post("/v1/messages", content=start))[:2] == (403, field)
            with live.client(Role.VIEWER) as viewer:
                assert viewer.get(other.path).status_code == 404


def test_a_run_is_taken_by_role_agent_alone_listed_and_in_the_record(live: Live) -> None:
    wanted = {"project": "lab", "run": "gpt-7", "person": "Ada"}
    with live.client(Role.ADMIN) as admin:
        for role in set(Role) - {Role.AGENT}:
            assert told(admin.post("/v1/tokens", json={"role": role, **wanted}))[:2] == (422, "run")
        del wanted["person"]
        made = admin.post("/v1/tokens", json={"role": "agent", **wanted}).json()
        other = admin.post("/v1/tokens", json={"role": "agent", "run": "gpt-7"}).json()
        assert other["project"] == "default"
        listed = admin.get("/v1/tokens", params={"limit": 1000}).json()["items"]
        entries = admin.get("/v1/audit").json()["items"]
    shown = {token["id"]: token for token in listed}[made["id"]]
    assert (shown["project"], shown["run"]) == ("lab", "gpt-7")
    entry = next(e for e in entries if e["subject"] == f"token {made['id']}")
    assert (entry["action"], entry["after"]) == ("token.created", "agent, project lab, run gpt-7")


def test_a_token_of_one_run_is_made_and_listed_on_the_command_line(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = live.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("DATABASE_URL", url)
    assert main(["token", "create", "--role", "agent", "--run", "lab/typed"]) == 0
    secret, said = capsys.readouterr()
    assert "for run typed in project lab" in said
    with live.bearing(secret.strip()) as agent:
        assert agent.get("/v1/me").json()["run"] == "typed"
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.setenv("SPIKEGUARD_SERVER", live.url)
    monkeypatch.setenv("SPIKEGUARD_TOKEN", live.token(Grant(Role.ADMIN, name="lists")))
    assert main(["token", "list"]) == 0
    head, _, newest, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["ID", "ROLE", "PROJECT", "RUN"]
    assert newest.split()[1:4] == ["agent", "lab", "typed"]
    wrong = (["viewer", "--run", "lab/typed"], ["agent", "--run", "lab/typed", "--project", "x"])
    for words in wrong:
        assert main(["token", "create", "--role", *words]) == 1
    assert "drop one" in capsys.readouterr().err


def rows_of(live: Live, job: Job) -> list[tuple[object, ...]]:
    """The run and its attempts as they lie in the database."""
    key = run_key(job.message().run_id)
    job.sequence -= 1
    with live.engine.connect() as connection:
        return [
            tuple(row)
            for table in (runs, attempts)
            for row in connection.execute(sql.select(table).where(table.c.run_id == key))
        ]
