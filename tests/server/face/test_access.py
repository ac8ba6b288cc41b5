"""Who may call what: the table in `access`, tried call by call and role by role."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator

import httpx
import pytest
import sqlalchemy as sql
from fastapi.routing import APIRoute

from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant
from spikeguard_server.http.app import ROUTERS
from spikeguard_server.identity.permissions import TABLE
from spikeguard_server.store.tables.core import tokens
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import cookie_of

GUARDED = sorted(call for call, rule in TABLE.items() if not rule.public)
PLACES = {
    "{project}": "default",
    "{name}": "spiked",
    "{number}": "1",
    "{command}": "99",
}
COOKIE = "spikeguard_session"


def call(
    live: Live, client: httpx.Client, method: str, path: str, token: str | None
) -> httpx.Response:
    """Make a call as whoever holds `token`, where this call looks for it."""
    client.cookies.clear()
    for place, value in {**PLACES, "{id}": "2147483647"}.items():
        path = path.replace(place, value)
    if path.startswith(("/confirm", "/incident", "/act", "/inbox")) and token:
        return client.request(
            method, path, headers={"Cookie": f"{COOKIE}={cookie_of(live.engine, token)}"}
        )
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with client.stream(method, path, headers=headers) as answer:
        answer.read()
        return answer


def test_every_call_of_the_server_stands_in_the_table_and_no_other() -> None:
    served = {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert served == set(TABLE)


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[httpx.Client]:
    """Calls of nobody; whoever uses it names the token."""
    with live.client() as calls:
        yield calls


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_a_call_is_open_to_the_roles_of_its_row_and_to_nobody_else(
    live: Live, client: httpx.Client, spiked: Job, method: str, path: str
) -> None:
    del spiked
    rule = TABLE[method, path]
    for role in Role:
        answer = call(live, client, method, path, live.tokens[role])
        assert answer.status_code < 500, answer.text
        if role in rule.roles:
            assert answer.status_code != 401
            assert answer.status_code != 403 or rule.person, (role, answer.text)
        else:
            assert answer.status_code == 403, (role, answer.text)


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_a_guarded_call_without_a_good_token_is_not_answered(
    live: Live, client: httpx.Client, method: str, path: str
) -> None:
    for token in (None, "x" * 43):
        answer = call(live, client, method, path, token)
        if path.startswith(("/confirm", "/incident", "/act", "/inbox")) and method == "GET":
            assert answer.status_code == 303
            assert answer.headers["location"].startswith(f"/login?next={path[:4]}")
        else:
            assert answer.status_code == 401
            assert "bearer" in answer.headers["www-authenticate"].lower()


def test_a_decision_with_a_token_that_names_nobody_says_to_log_in(live: Live, spiked: Job) -> None:
    command = spiked.command_path(spiked.incident()["commands"][0])
    with live.client(Role.OPERATOR) as client:
        error = client.post(f"{command}/approve", json={"revision": 1}).json()["error"]
    assert error["code"] == "no_person"
    assert "spikeguard login" in error["remedy"]


def test_a_token_of_one_project_sees_and_writes_no_other(live: Live, job: Job) -> None:
    ours = live.token(Grant(Role.VIEWER, "ours"))
    with live.bearing(ours) as client:
        assert client.get(job.path).status_code == 403
        assert client.get("/v1/incidents", params={"run": f"default/{job.run}"}).status_code == 403
        assert client.get("/v1/policy").status_code == 403
        assert client.get("/v1/runs").json()["items"] == []
    with live.bearing(live.token(Grant(Role.AGENT, "ours"))) as agent:
        body = {"version": 1, "project": "default", "run": job.run, "attempt": job.attempt}
        answer = agent.post("/v1/messages", json={**body, "sequence": 2, "age_s": 0, "records": []})
        assert answer.status_code == 403


def test_no_secret_is_in_a_log_or_an_error(
    live: Live, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong with a call that carries one."""
    caplog.set_level(logging.DEBUG)
    secret = live.token(Grant(Role.OPERATOR))
    with live.bearing(secret) as client:
        answers = [
            client.post("/v1/messages", content=b"{"),
            client.get("/v1/audit"),
            client.get("/v1/runs/default/never-heard-of"),
            client.get("/v1/runs", params={"cursor": secret}),
            client.post("/v1/sessions", json={"token": f"{secret} ", "name": 3}),
            client.post("/v1/sessions", json={"token": secret, "name": "\x00"}),
            client.post(f"{job.path}/incidents/1/commands/1/approve", json={"token": secret}),
            client.post("/login", data={"token": secret, "key": "x"}),
            client.get(f"/approve/{secret}"),
            client.put("/v1/policy", json={"project": secret, "policy": {secret: secret}}),
            client.request("BREW", "/v1/me"),
        ]
    for answer in answers:
        assert 400 <= answer.status_code < 500, answer.text
        assert secret not in answer.text, answer.request.url
    ours = [record for record in caplog.records if not record.name.startswith("http")]
    assert not [record for record in ours if secret in record.getMessage()]


def test_an_expired_token_and_the_session_it_opened_do_not_work(live: Live) -> None:
    secret = live.token(Grant(Role.OPERATOR, person="Ada", expires_in_s=3600))
    with live.client() as client:
        session = client.post("/v1/sessions", json={"token": secret}).json()
        assert session["expires_in_s"] <= 3600
        with live.engine.begin() as connection:
            mine = tokens.c.hash == hashlib.sha256(secret.encode()).digest()
            gone = tokens.update().where(mine).values(expires_at=sql.func.now())
            connection.execute(gone)
        for token in (secret, session["token"]):
            with live.bearing(token) as late:
                assert late.get("/v1/me").status_code == 401


def test_the_database_holds_no_secret(live: Live) -> None:
    with live.engine.connect() as connection:
        stored = str(connection.execute(sql.select(tokens)).all()).encode()
    for secret in live.tokens.values():
        assert secret.encode() not in stored


def test_a_session_carries_the_name_that_was_given(live: Live) -> None:
    with live.person("  Ada   Lovelace ") as ada:
        me = ada.get("/v1/me").json()
    assert (me["name"], me["role"], me["project"]) == ("Ada Lovelace", "operator", None)
    assert 11.9 * 3600 < me["expires_in_s"] <= 12 * 3600


def test_a_token_made_for_one_person_is_good_for_no_other_name(live: Live) -> None:
    secret = live.token(Grant(Role.OPERATOR, person="Ada"))
    with live.client() as client:
        for name, status in (("", 200), ("Ada", 200), ("Grace", 403)):
            answer = client.post("/v1/sessions", json={"token": secret, "name": name})
            assert answer.status_code == status, name


@pytest.mark.parametrize("role", [Role.AGENT, Role.METRICS])
def test_a_machine_does_not_log_in(live: Live, role: Role) -> None:
    with live.client() as client:
        login = {"token": live.tokens[role], "name": "Robot"}
        assert client.post("/v1/sessions", json=login).status_code == 403


def test_a_session_can_neither_open_another_nor_outlive_its_end(live: Live) -> None:
    with live.person("Ada") as ada:
        own = ada.headers["authorization"].removeprefix("Bearer ")
        answer = ada.post("/v1/sessions", json={"token": own, "name": "Ada"})
        assert answer.status_code == 403
        assert ada.delete("/v1/sessions/current").status_code == 204
        assert ada.get("/v1/me").status_code == 401


def test_the_api_ignores_the_cookie_and_the_pages_ignore_the_header(
    live: Live, spiked: Job
) -> None:
    del spiked
    with live.person("Ada") as ada:
        header = {"Authorization": ada.headers["authorization"]}
        secret = cookie_of(live.engine, header["Authorization"].removeprefix("Bearer "))
        cookie = {"Cookie": f"{COOKIE}={secret}"}
        page = "/confirm/default/spiked/1/1"
    with live.client() as client:
        assert client.get("/v1/me", headers=header).status_code == 200
        assert client.get("/v1/me", headers=cookie).status_code == 401
        assert client.get(page, headers=cookie).status_code == 200
        assert client.get(page, headers=header).status_code == 303
        stolen = {"Authorization": f"Bearer {secret}"}  # by who listens on another port of the host
        for method, path in (
            ("GET", "/v1/me"),
            ("POST", "/v1/tokens"),
            ("POST", "/v1/policy/halt"),
        ):
            assert client.request(method, path, headers=stolen).status_code == 401


def test_the_dashboard_gets_a_ticket_that_only_reads_and_ends_with_the_session(live: Live) -> None:
    with live.client() as browser:
        form = {"token": live.tokens[Role.ADMIN], "name": "Ada"}
        assert browser.post("/login", data=form).status_code == 303
        ticket = browser.cookies["spikeguard_dashboard"]
        assert ticket != browser.cookies[COOKIE]
        with live.bearing(ticket) as dashboard:
            me = dashboard.get("/v1/me").json()
            assert (me["name"], me["role"], me["project"]) == ("Ada", "viewer", None)
            assert dashboard.get("/v1/runs").status_code == 200
            assert dashboard.post("/v1/tokens", json={"role": "viewer"}).status_code == 403
            assert dashboard.post("/v1/policy/halt", json={"reason": "x"}).status_code == 403
            assert browser.post("/logout").status_code == 303
            assert "spikeguard_dashboard" not in browser.cookies
            assert dashboard.get("/v1/me").status_code == 401
