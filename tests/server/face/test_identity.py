# ruff: noqa: RUF001  letters of other scripts are what is tested
"""Who acted stands in the record so that nobody can pass for somebody else, nor for a machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.access.person_names import read_person
from spikeguard_server.errors import Unprocessable
from spikeguard_server.settings import Settings
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import serving

MACHINES = (
    "policy 1", "Policy 12", "server", "SERVER", "attempt 2", "token 4",
    "spikeguard up", "root on the command line", "Ada (by a link)", "nobody",
)  # fmt: skip
DISGUISED = {
    "zero-width space": "Ada\u200b Lovelace",
    "filler": "Ada\u3164",
    "right-to-left override": "ecalevoL \u202eadA",
    "line break": "Ada\nLovelace",
    "soft hyphen": "Ada\u00adLovelace",
    "no letter": "...",
}
PEOPLE = (
    "Ада Лавлейс",
    "李小龍",
    "山田 太郎",
    "김철수",
    "محمد الخوارزمي",
    "मीरा",
    "José Ñuñez",
    "O'Brien",
    "Anna Müller (田中)",
)


def sign_in(live: Live, name: str, token: str | None = None) -> httpx.Response:
    with live.client() as client:
        secret = token or live.tokens[Role.OPERATOR]
        return client.post("/v1/sessions", json={"token": secret, "name": name})


@pytest.mark.parametrize("name", MACHINES)
def test_a_name_that_a_machine_goes_by_is_no_persons(live: Live, name: str) -> None:
    """By the login, and by whoever makes a token for a person."""
    answers = [sign_in(live, name)]
    with live.client(Role.ADMIN) as admin:
        answers.append(admin.post("/v1/tokens", json={"role": "viewer", "person": name}))
    for answer, field in zip(answers, ("name", "person"), strict=True):
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"]["field"] == field


@pytest.mark.parametrize("name", DISGUISED.values(), ids=DISGUISED.keys())
def test_a_name_that_is_not_what_it_looks_like_is_refused(live: Live, name: str) -> None:
    assert sign_in(live, name).status_code == 422


@pytest.mark.parametrize("name", PEOPLE)
def test_a_name_in_any_script_is_welcome(live: Live, name: str) -> None:
    assert sign_in(live, name).json()["name"] == name
    assert sign_in(live, f"  {name} ").json()["name"] == name


def test_names_are_stored_in_one_form(live: Live) -> None:
    assert sign_in(live, "Ａｄａ  Cafe\u0301").json()["name"] == "Ada Café"


@pytest.mark.parametrize(
    ("known", "other"),
    [("warner@example.org", "wamer@example.org"), ("Alan Miller", "AIan Miller")],
)
def test_nobody_is_kept_out_because_their_name_looks_like_another_ones(
    live: Live, known: str, other: str
) -> None:
    """Not by a colleague's token, nor by what an admin of another project wrote."""
    with live.client(Role.ADMIN) as admin:
        for project, person in (("beta", other), ("alpha", known), ("alpha", other)):
            wanted = {"role": "viewer", "person": person, "project": project}
            made = admin.post("/v1/tokens", json=wanted)
            assert made.status_code == 201, made.text
    for name in (known, other, known):
        assert sign_in(live, name).json()["name"] == name


def newest(live: Live, path: str = "/v1/audit") -> dict[str, Any]:
    with live.client(Role.ADMIN) as admin:
        entry: dict[str, Any] = admin.get(path, params={"limit": 1}).json()["items"][0]
        return entry


def test_the_record_says_with_which_token_and_session_and_how_a_person_is_known(
    live: Live, job: Job
) -> None:
    job.spike()
    proposal = job.incident()["proposal"]
    path, revision = job.command_path(proposal), proposal["revision"]
    with live.client(Role.ADMIN) as admin:
        hers = admin.post("/v1/tokens", json={"role": "operator", "person": "Ada"}).json()
        made = newest(live)
    assert (made["actor_kind"], made["session"], made["known_by"]) == ("token", None, None)
    assert made["actor"] == f"token {made['token']}"
    for token, name, known_by in ((hers["token"], "", "token"), (None, "Grace Typed", "typed")):
        session = sign_in(live, name, token).json()["token"]
        opened = newest(live)
        with live.bearing(session) as calls:
            verdict = {"revision": revision, "reason": "no"}
            if known_by == "token":
                assert calls.post(f"{path}/reject", json={"revision": 99, "reason": "x"}).is_error
            else:
                assert calls.post(f"{path}/reject", json=verdict).status_code == 200
        assert (opened["actor_kind"], opened["known_by"]) == ("person", known_by)
        assert opened["subject"] == f"session {opened['session']}"
        assert (opened["token"] == hers["id"]) is (known_by == "token")
    decided = newest(live, f"{job.path}/audit")
    assert (decided["actor"], decided["known_by"]) == ("Grace Typed", "typed")
    assert (decided["token"], decided["session"]) == (opened["token"], opened["session"])


def test_whatever_acts_by_itself_has_its_kind_in_the_record(live: Live, spiked: Job) -> None:
    with live.client(Role.VIEWER) as viewer:
        entries = viewer.get(f"{spiked.path}/audit", params={"limit": 1000}).json()["items"]
    assert {entry["actor_kind"] for entry in entries} == {"policy", "server"}
    assert all(entry["actor"].startswith(entry["actor_kind"]) for entry in entries)


@pytest.fixture(scope="module")
def named_only(face_url: str) -> Iterator[str]:
    """Another replica, on which a typed name decides nothing."""
    with serving(Settings(database_url=face_url, decisions_by="named")) as url:
        yield url


def test_where_only_proven_names_decide_a_typed_one_decides_nothing(
    live: Live, named_only: str
) -> None:
    """It reads as before; a token that names its person decides."""
    silence = {"project": "p", "lasts_s": 60, "reason": "x"}
    with live.engine.begin() as connection:
        grant = Grant(Role.OPERATOR, person="Ada")
        hers = issue_token(connection, grant, "test")[0]
    sessions = [sign_in(live, "Grace Typed"), sign_in(live, "", hers)]
    answers = []
    for session in sessions:
        headers = {"Authorization": f"Bearer {session.json()['token']}"}
        with httpx.Client(base_url=named_only, headers=headers, timeout=120) as calls:
            assert calls.get("/v1/runs").status_code == 200
            answers.append(calls.post("/v1/silences", json=silence))
    assert (answers[0].status_code, answers[1].status_code) == (403, 201)
    error = answers[0].json()["error"]
    assert error["code"] == "name_not_proven"
    assert "--person" in error["remedy"]


def test_a_token_for_people_asks_for_the_name(live: Live) -> None:
    with live.client(Role.ADMIN) as admin:
        unsaid = admin.post("/v1/tokens", json={"role": "operator"})
        assert (unsaid.status_code, unsaid.json()["error"]["field"]) == (422, "person")
        assert admin.post("/v1/tokens", json={"role": "operator", "unnamed": True}).is_success


def test_no_length_of_a_name_is_a_way_around(live: Live) -> None:
    del live
    for name in ("", " ", "x" * 81, "\ufdfa" * 20):  # the last grows to 360 in its normal form
        with pytest.raises(Unprocessable):
            read_person(name)
