"""What a token may outlive, and what it is judged by with every message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_cli.main import main
from spikeguard_protocol import AttemptStarted, Role, encode
from spikeguard_server.access.grants import Grant
from spikeguard_server.identity.permissions import hash_secret
from spikeguard_server.jobs.ticker import warn_of_expiry
from spikeguard_server.store.reads.fleet import read_fleet
from spikeguard_server.store.tables.core import attempts, run_key, runs, tokens
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import bearer_of

DAY_S = 86_400.0
Change = Callable[..., None]


@pytest.fixture
def change(live: Live) -> Change:
    """Changes the row of a token, as time does."""

    def do(secret: str, **columns: Any) -> None:
        with live.engine.begin() as connection:
            mine = tokens.c.hash == hash_secret(secret)
            connection.execute(sql.update(tokens).where(mine).values(**columns))

    return do


def signed_in(live: Live, secret: str, name: str = "") -> str:
    with live.client() as client:
        answer = client.post("/v1/sessions", json={"token": secret, "name": name})
        return str(answer.json()["token"])


def make(live: Live, secret: str, **wanted: Any) -> dict[str, Any]:
    with live.bearing(secret) as caller:
        answer = caller.post("/v1/tokens", json=wanted)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made


def works(live: Live, secret: str) -> bool:
    with live.bearing(secret) as caller:
        return caller.get("/v1/me").status_code == 200


def ada(live: Live, **grant: Any) -> str:
    """A token in a person's name that may make others."""
    return live.token(Grant(Role.ADMIN, person="Ada Lovelace", **grant))


def test_what_a_session_makes_ends_with_the_grant_and_not_with_the_session(
    live: Live, change: Change
) -> None:
    """A session of 300 s made a token that never ended and outlived its parent."""
    grant = ada(live, expires_in_s=30 * DAY_S)
    session = signed_in(live, grant)
    change(session, expires_at=sql.func.now() + sql.text("interval '300 s'"))
    made = make(live, session, role="viewer")
    assert 29 * DAY_S < made["expires_in_s"] <= 30 * DAY_S
    with live.bearing(session) as caller:
        longer = caller.post("/v1/tokens", json={"role": "viewer", "expires_in_s": 31 * DAY_S})
        assert (longer.status_code, longer.json()["error"]["field"]) == (422, "expires_in_s")
        assert longer.json()["error"]["limit"] <= 30 * DAY_S
        assert caller.delete("/v1/sessions/current").status_code == 204  # logs out
    assert works(live, made["token"])


def test_revoking_a_grant_revokes_all_that_was_made_with_it(live: Live) -> None:
    """Sessions, what they made, and what was made with that; each stands in the record."""
    grant = ada(live)
    child = make(live, signed_in(live, grant), role="admin", person="Grace Hopper")
    session = signed_in(live, child["token"])
    grandchildren = [make(live, session, role=role)["token"] for role in ("agent", "viewer")]
    with live.client(Role.ADMIN) as root:
        shown = root.get("/v1/tokens", params={"limit": 1000}).json()["items"]
        [mine] = [token for token in shown if token["id"] == child["id"]]
        made = [token for token in shown if not token["session"]]
        others = [token for token in made if token["made_with"] == child["id"]]
        assert root.delete(f"/v1/tokens/{mine['made_with']}").status_code == 204
        entries = root.get("/v1/audit", params={"limit": 4}).json()["items"]
    secrets = [grant, child["token"], session, *grandchildren]
    assert [works(live, secret) for secret in secrets] == [False] * 5
    revoked = [f"token {id}" for id in (mine["made_with"], mine["id"], *(o["id"] for o in others))]
    assert sorted(entry["subject"] for entry in entries) == sorted(revoked)
    assert {entry["action"] for entry in entries} == {"token.revoked"}


def test_a_jobs_token_lasts_a_year_at_most_whoever_makes_it(live: Live) -> None:
    """It has a ceiling of its own: a person's grant that ends by itself takes no job's token."""
    made = make(live, signed_in(live, ada(live, expires_in_s=DAY_S)), role="agent")
    assert 364 * DAY_S < made["expires_in_s"] <= 365 * DAY_S
    with live.client(Role.ADMIN) as root:
        longer = root.post("/v1/tokens", json={"role": "agent", "expires_in_s": 366 * DAY_S})
    assert longer.status_code == 422
    assert "SPIKEGUARD_AGENT_TOKEN_DAYS" in longer.json()["error"]["message"]


def test_a_token_that_a_session_makes_needs_a_sign_in_of_a_moment_ago(
    live: Live, change: Change
) -> None:
    grant = ada(live)
    session = signed_in(live, grant)
    assert make(live, session, role="admin", person="Grace Hopper")["role"] == "admin"
    change(session, signed_in_at=sql.func.now() - sql.text("interval '11 minutes'"))
    with live.bearing(session) as caller:
        for role in ("admin", "viewer", "agent"):
            stale = caller.post("/v1/tokens", json={"role": role, "person": "Grace Hopper"})
            assert (stale.status_code, stale.json()["error"]["code"]) == (403, "sign_in_again")
            assert "spikeguard login" in stale.json()["error"]["remedy"]
    make(live, signed_in(live, grant), role="admin", person="Grace Hopper")


def test_a_jobs_token_that_ends_soon_is_warned_of(
    live: Live, change: Change, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """By log, metric and command line, from 14 days before."""
    soon = live.token(Grant(Role.AGENT, name="the night shift"))
    change(soon, expires_at=sql.func.now() + sql.text("interval '15 days'"))
    monkeypatch.setenv("SPIKEGUARD_SERVER", live.url)
    monkeypatch.setenv("SPIKEGUARD_TOKEN", live.token(Grant(Role.ADMIN)))

    def told() -> tuple[str, int, str]:
        caplog.clear()
        capsys.readouterr()
        warn_of_expiry(live.engine)
        with live.engine.connect() as connection:
            expiring = read_fleet(connection).agent_tokens_expiring
        assert main(["token", "list"]) == 0
        return caplog.text, expiring, capsys.readouterr().err

    log, before, listed = told()
    assert "the night shift" not in log + listed
    change(soon, expires_at=sql.func.now() + sql.text("interval '9 days'"))
    log, after, listed = told()
    assert after == before + 1
    for text in (log, listed):
        assert "'the night shift' ends in 9.0 days" in text
    assert logging.getLogger("spikeguard_server.jobs.ticker").isEnabledFor(logging.WARNING)


def test_the_command_line_asks_whose_a_token_for_people_is(
    face_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", face_url)
    create = ["token", "create", "--role", "operator"]
    assert main(create) == 1
    assert "--person NAME" in capsys.readouterr().err
    assert main([*create, "--unnamed"]) == 0
    assert main([*create, "--person", "root on the command line"]) == 1
    assert main([*create, "--person", "Ada Lovelace"]) == 0
    assert "of Ada Lovelace" in capsys.readouterr().err


def test_logging_in_without_a_name_takes_the_tokens(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that of the account where the token names nobody."""
    monkeypatch.setenv("SPIKEGUARD_CREDENTIALS", str(tmp_path / "credentials.json"))
    monkeypatch.setenv("LOGNAME", "grace")
    for secret, name in ((ada(live), "Ada Lovelace"), (live.tokens[Role.OPERATOR], "grace")):
        (tmp_path / "token").write_text(secret)
        words = ["login", "--server", live.url, "--token-file", str(tmp_path / "token")]
        assert main(words) == 0
        assert f"as {name} (" in capsys.readouterr().out


def browser_of(live: Live, session: str) -> str:
    """The session of a browser that a sign-in link of `session` opened."""
    with live.bearing(session) as caller, live.client() as browser:
        link = caller.post("/v1/sessions/links", json={"next": ""}).json()["link"]
        assert browser.post(link.removeprefix(live.url)).status_code == 303
        return bearer_of(live.engine, browser.cookies["spikeguard_session"])


def test_a_browser_that_a_link_signed_in_is_known_and_as_fresh_as_who_made_the_link(
    live: Live, change: Change
) -> None:
    """What it makes hangs on the person's token, and outlives the session that made the link."""
    grant = ada(live)
    session = signed_in(live, grant)
    change(session, signed_in_at=sql.func.now() - sql.text("interval '11 minutes'"))
    browser = browser_of(live, session)
    with live.bearing(browser) as caller:
        stale = caller.post("/v1/tokens", json={"role": "admin", "person": "Grace Hopper"})
        assert stale.json()["error"]["code"] == "sign_in_again"
    session = signed_in(live, grant)
    browser = browser_of(live, session)
    made = make(live, browser, role="viewer")
    with live.client(Role.ADMIN) as root:
        entry = root.get("/v1/audit", params={"limit": 1}).json()["items"][0]
    assert (entry["actor"], entry["known_by"], entry["token"]) == (
        "Ada Lovelace", "token", made["made_with"],
    )  # fmt: skip
    with live.bearing(session) as caller:
        assert caller.delete("/v1/sessions/current").status_code == 204
    assert [works(live, secret) for secret in (browser, made["token"])] == [False, True]


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
