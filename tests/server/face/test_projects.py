"""A token of one project reaches no other one, call by call as `access.TABLE` says."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from spikeguard_protocol import Message, Role, encode
from spikeguard_server.access.grants import Grant
from spikeguard_server.identity.permissions import TABLE, Scope, form_key
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import cookie_of
from tests.server.face.test_access import COOKIE, PLACES

OURS, THEIRS = "of-projects", "default"
BODIES: dict[tuple[str, str], dict[str, Any]] = {  # without their project
    ("PUT", "/v1/policy"): {"policy": {}},
    ("POST", "/v1/policy/halt"): {"reason": "a bad checkpoint went round"},
    ("POST", "/v1/policy/resume"): {"reason": "it was mended"},
    ("POST", "/v1/silences"): {"lasts_s": 60, "reason": "the racks are moved"},
    ("POST", "/v1/tokens"): {"role": "viewer"},
}
MESSAGES = ("POST", "/v1/messages")
PAGE = ("GET", "/inbox")
FORM = ("POST", "/inbox")  # the kill switch, on a page
CALLS = sorted(TABLE)


def calls(*scopes: Scope) -> list[tuple[str, str]]:
    return [call for call in CALLS if TABLE[call].scope in scopes]


def ask(
    live: Live, call: tuple[str, str], project: str, *, of: str = OURS, absent: bool = False
) -> httpx.Response:
    """Make the call about `project` with a token of project `of` that its row asks for."""
    method, path = call
    role = next(role for role in Role if role in TABLE[call].roles)
    token = live.token(Grant(role, of, person="Ada"))
    for place, value in {**PLACES, "{project}": project}.items():
        path = path.replace(place, value)
    cookie = cookie_of(live.engine, token)
    headers = {
        "Authorization": f"Bearer {token}",
        "Cookie": f"{COOKIE}={cookie}",
    }
    given = {} if absent else _naming(call, project, cookie)
    with (
        live.client() as client,
        client.stream(method, path, headers=headers, **given) as answer,
    ):
        answer.read()
        return answer


def _naming(call: tuple[str, str], project: str, token: str) -> dict[str, Any]:
    """What names the project, in a call that is otherwise as it should be."""
    if call == MESSAGES:
        return {"content": encode(Message(project, "of-projects", "e" * 16, 1, 0.0, ()))}
    if call == FORM:
        key = form_key(token, "inbox")
        return {"data": {"verdict": "halt", "project": project, "reason": "x", "key": key}}
    if TABLE[call].scope is Scope.BODY:
        return {"json": {**BODIES[call], "project": project}}
    return {"params": {"project": project}} if TABLE[call].scope is Scope.QUERY else {}


def test_the_table_says_of_every_call_where_its_project_stands() -> None:
    assert set(calls(Scope.BODY)) == {*BODIES, MESSAGES, FORM}
    for call in CALLS:
        assert (TABLE[call].scope is Scope.PATH) is ("{project}" in call[1]), call
        assert not TABLE[call].public or TABLE[call].scope is Scope.NONE, call
    own = {call for call in calls(Scope.NONE) if not TABLE[call].public}
    assert own == {
        ("GET", "/v1/me"),
        ("DELETE", "/v1/sessions/current"),
        ("POST", "/v1/sessions/links"),  # which carries what its maker may, and no more
        ("GET", "/metrics"),
    }


@pytest.mark.parametrize("call", calls(Scope.PATH, Scope.QUERY, Scope.BODY), ids=" ".join)
def test_a_call_about_another_project_is_refused_and_about_ones_own_it_is_not(
    live: Live, spiked: Job, call: tuple[str, str]
) -> None:
    del spiked
    refused = ask(live, call, THEIRS)
    assert refused.status_code == 403, refused.text
    assert f"project {OURS}" in refused.text
    assert f"SPIKEGUARD_PROJECT={OURS}" in refused.text  # what a job lacks
    assert ask(live, call, OURS).status_code != 403


@pytest.mark.parametrize("call", calls(Scope.QUERY), ids=" ".join)
def test_a_call_that_names_no_project_is_about_the_default_one(
    live: Live, call: tuple[str, str]
) -> None:
    assert ask(live, call, THEIRS, absent=True).status_code == 403


def test_a_page_lists_what_is_the_sessions_own_and_nothing_else(live: Live, spiked: Job) -> None:
    del spiked
    for project in (OURS, THEIRS):
        text = ask(live, PAGE, project, of=project).text
        assert ("/incident/default/" in text) is (project == THEIRS)
        assert (f"<b>{THEIRS}</b>" in text) is (project == THEIRS)  # its kill switch


@pytest.mark.parametrize("call", sorted({*calls(Scope.LIST)} - {PAGE}), ids=" ".join)
def test_a_list_holds_what_is_the_tokens_own_and_nothing_else(
    live: Live, spiked: Job, call: tuple[str, str]
) -> None:
    del spiked
    for project in (OURS, THEIRS):
        items = ask(live, call, project, of=project).json()["items"]
        assert {_project(item) for item in items} <= {project}
        assert items or project == OURS


def _project(item: dict[str, Any]) -> str:
    """Of a run, an incident or a token."""
    found: str = item["project"] if "project" in item else item["run"]["project"]
    return found


@pytest.mark.parametrize("call", calls(Scope.FLEET), ids=" ".join)
def test_what_is_of_all_projects_is_not_for_a_token_of_one(
    live: Live, call: tuple[str, str]
) -> None:
    refused = ask(live, call, THEIRS)
    assert refused.status_code == 403
    assert f"project {OURS}" in refused.text


@pytest.mark.parametrize("call", calls(Scope.ITEM), ids=" ".join)
def test_of_another_project_there_is_no_such_thing(live: Live, call: tuple[str, str]) -> None:
    assert call == ("DELETE", "/v1/tokens/{id}")
    with (
        live.client(Role.ADMIN) as root,
        live.bearing(live.token(Grant(Role.ADMIN, OURS))) as admin,
    ):
        made = root.post("/v1/tokens", json={"role": "viewer", "project": THEIRS}).json()
        assert admin.delete(f"/v1/tokens/{made['id']}").status_code == 404
        with live.bearing(made["token"]) as theirs:
            assert theirs.get("/v1/me").status_code == 200
