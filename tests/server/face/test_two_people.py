"""Two people for one command: where the policy asks for them, one person is never enough."""

from __future__ import annotations

import re
from collections.abc import Iterator
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from spikeguard_cli.main import main
from spikeguard_protocol import Role, Rollback
from spikeguard_server.access.grants import Grant
from tests.server.face.test_decisions import KEY, browser, confirm_page, state_of
from tests.server.face.test_links import linked
from tests.server.notify.listener import Listener, listening

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live

TWO = {"approval": {"rollback": {"approvals": 2}, "stop": {"approvals": 2}}}


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as found:
        yield found


def asks_two(live: Live, job: Job, **policy: Any) -> Job:
    with live.client(Role.ADMIN) as admin:
        answer = admin.put(f"{job.path}/policy", json={"policy": {**TWO, **policy}})
    assert answer.status_code == 200, answer.text
    return job


@pytest.fixture
def proposed(live: Live, job: Job) -> dict[str, Any]:
    """A rollback that two people have to approve."""
    proposal: dict[str, Any] = asks_two(live, job).spike().incident()["proposal"]
    assert (proposal["verb"], proposal["approvals"]) == ("rollback", 2)
    return proposal


def named(live: Live, name: str, role: Role = Role.OPERATOR) -> httpx.Client:
    """Calls with a token of their own."""
    return live.bearing(live.token(Grant(role, person=name)))


def say(person: httpx.Client, job: Job, command: dict[str, Any], word: str = "approve") -> Any:
    body = {"revision": command["revision"]} | ({"reason": "no"} if word == "reject" else {})
    return person.post(f"{job.command_path(command)}/{word}", json=body)


def rollbacks(job: Job) -> list[str]:
    return [o.command for o in job.send().orders if isinstance(o.action, Rollback)]


def audit(live: Live, job: Job, *actions: str) -> list[dict[str, Any]]:
    with live.client(Role.VIEWER) as viewer:
        items = viewer.get(f"{job.path}/audit").json()["items"]
    return [entry for entry in reversed(items) if entry["action"] in actions]


def test_the_job_gets_a_command_only_after_a_second_persons_yes(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    with named(live, "Ada Lovelace") as ada, named(live, "Grace Hopper") as grace:
        first = say(ada, job, proposed).json()
        assert (first["state"], first["first_approved_by"]) == ("approved_once", "Ada Lovelace")
        assert (first["decided_by"], first["decided_at"]) == (None, None)
        assert rollbacks(job) == []
        assert job.incident()["proposal"]["first_approved_by"] == "Ada Lovelace"
        second = say(grace, job, proposed).json()
    assert second["state"] == "approved"
    assert second["decided_by"] == "Ada Lovelace and Grace Hopper"
    assert rollbacks(job) == [proposed["id"]]
    moves = audit(live, job, "approve_first", "approve")
    mine = [entry for entry in moves if entry["subject"] == proposed["id"]]
    assert [(e["actor"], e["before"], e["after"]) for e in mine] == [
        ("Ada Lovelace", "proposed", "approved_once"),
        ("Grace Hopper", "approved_once", "approved"),
    ]
    assert len({entry["token"] for entry in mine}) == 2


def test_one_person_twice_and_one_token_twice_count_once(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    """By the same token, by another of theirs, by two names typed with one unnamed token."""
    with live.person("Ada Lovelace") as typed:
        assert say(typed, job, proposed).json()["state"] == "approved_once"
    others = [live.person("Grace Hopper"), named(live, "ada lovelace"), live.person("Ada Lovelace")]
    for other in others:
        answer = say(other, job, proposed)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "illegal_move")
        assert "needs two people, and Ada Lovelace" in answer.json()["error"]["message"]
        assert "Another person" in answer.json()["error"]["remedy"]
        other.close()
    assert state_of(job, proposed)["state"] == "approved_once"
    assert rollbacks(job) == []


def test_an_admin_makes_no_second_person_of_a_new_token(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    """Neither before their own yes nor after it, nor by a token in between."""
    with named(live, "Ada Lovelace", Role.ADMIN) as ada:
        login = ada.headers["authorization"].removeprefix("Bearer ")
        session = ada.post("/v1/sessions", json={"token": login, "name": ""}).json()["token"]
        with live.bearing(session) as fresh:
            wanted = {"role": "admin", "person": "Eve Nobody"}
            eve = fresh.post("/v1/tokens", json=wanted).json()["token"]
        with live.bearing(eve) as between:
            session = between.post("/v1/sessions", json={"token": eve, "name": ""}).json()["token"]
        with live.bearing(session) as fresh:
            wanted = {"role": "operator", "person": "Mallory Nobody"}
            mallory = fresh.post("/v1/tokens", json=wanted).json()["token"]
        with live.bearing(mallory) as second:
            assert say(second, job, proposed).json()["state"] == "approved_once"
        answer = say(ada, job, proposed)
    assert answer.status_code == 409
    assert "one was made with the other since it was proposed" in answer.json()["error"]["message"]


def test_either_person_can_reject_after_the_first_yes(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    with named(live, "Ada Lovelace") as ada, named(live, "Grace Hopper") as grace:
        assert say(ada, job, proposed).status_code == 200
        done = say(grace, job, proposed, "reject").json()
    assert (done["state"], done["decided_by"]) == ("rejected", "Grace Hopper")
    assert done["first_approved_by"] == "Ada Lovelace"
    assert rollbacks(job) == []


def test_a_new_revision_asks_both_people_again(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    """The target that the first person saw is gone before the second one says yes."""
    from spikeguard_protocol import TargetDeleted

    with named(live, "Ada Lovelace") as ada, named(live, "Grace Hopper") as grace:
        assert say(ada, job, proposed).status_code == 200
        job.send(TargetDeleted(proposed["arguments"]["target"]))
        answer = say(grace, job, proposed)
        newer = state_of(job, proposed)
        assert answer.json()["error"]["code"] == "revision_changed"
        assert newer["revision"] > proposed["revision"]
        assert (newer["state"], newer["first_approved_by"]) == ("proposed", None)
        assert say(grace, job, newer).json()["state"] == "approved_once"
        assert say(ada, job, newer).json()["decided_by"] == "Grace Hopper and Ada Lovelace"


def test_time_runs_out_on_the_second_person_by_a_name_of_its_own(live: Live, job: Job) -> None:
    asks_two(live, job, expires_after_steps=60)
    command = job.spike().incident()["proposal"]
    with named(live, "Ada Lovelace") as ada:
        assert say(ada, job, command).status_code == 200
    job.train(70, excess=3.0)
    late = state_of(job, command)
    assert (late["state"], late["end_reason"]) == (
        "unconfirmed", "no second person approved in time",
    )  # fmt: skip
    assert rollbacks(job) == []


def test_the_kill_switch_needs_one_person_and_takes_the_first_yes_back(
    live: Live, new_job: Any
) -> None:
    job = new_job("two-people-halted")
    asks_two(live, job)
    command = job.spike().incident()["proposal"]
    switch = {"project": job.project, "reason": "a bad checkpoint went round"}
    with named(live, "Ada Lovelace") as ada, named(live, "Root", Role.ADMIN) as root:
        assert say(ada, job, command).json()["state"] == "approved_once"
        assert ada.post("/v1/policy/halt", json=switch).status_code == 200
        try:
            give_up_at = monotonic() + 10  # the run says nothing
            while state_of(job, command)["state"] != "halted":
                assert monotonic() < give_up_at
                sleep(0.1)
        finally:
            assert root.post("/v1/policy/resume", json=switch).status_code == 200


def test_a_policy_that_asks_for_one_person_again_loosens_nothing_that_waits(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    auto = {"policy": {"approval": {"rollback": {"mode": "auto", "cooldown_s": 0}}}}
    with named(live, "Root", Role.ADMIN) as root:
        assert say(root, job, proposed).json()["state"] == "approved_once"
        assert root.put(f"{job.path}/policy", json=auto).status_code == 200
        job.train(1, excess=3.0)
        assert rollbacks(job) == []
        assert say(root, job, proposed).status_code == 409
        [change] = audit(live, job, "policy.written")[1]["changes"][:1]
    assert (change["field"], change["before"], change["after"]) == (
        "approval.rollback.approvals", 2, 1,
    )  # fmt: skip


def test_the_page_says_who_approved_first_and_the_second_yes_is_given_there(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    path, form = confirm_page(job, proposed), {"revision": proposed["revision"]}
    for name, waits in (("Ada Lovelace", True), ("Grace Hopper", False)):
        with named(live, name) as person, browser(live, person) as page:
            shown = page.get(path).text
            which = "first" if waits else "second"
            assert f"Approve as the {which} of two" in shown
            assert ("Ada Lovelace approved this revision at" in shown) is not waits
            (key,) = KEY.findall(shown)
            done = page.post(path, data={**form, "key": key, "verdict": "approve"})
            assert done.status_code == 303
            after = page.get(path).text
            assert ("You gave the first approval" in after) is waits
            assert 'value="approve"' not in after
    assert "Approved by Ada Lovelace and Grace Hopper at" in after
    assert state_of(job, proposed)["state"] == "approved"


def test_the_command_line_says_whose_yes_is_missing(
    live: Live, job: Job, proposed: dict[str, Any], monkeypatch: Any, capsys: Any
) -> None:
    def approve(name: str) -> str:
        monkeypatch.setenv("SPIKEGUARD_SERVER", live.url)
        monkeypatch.setenv("SPIKEGUARD_TOKEN", live.token(Grant(Role.OPERATOR, person=name)))
        assert main(["approve", proposed["id"], "--yes"]) == 0
        return str(capsys.readouterr().out)

    first, second = approve("Ada Lovelace"), approve("Grace Hopper")
    assert "it needs two people" in first
    assert "Approved, the first of two" in first
    assert "Ada Lovelace approved it; it needs a second person" in second
    assert "The job applies it at its next step boundary" in second
    assert rollbacks(job) == [proposed["id"]]


def test_a_link_gives_one_of_two_and_the_second_person_is_told(
    live: Live, job: Job, listener: Listener
) -> None:
    """Whoever reads the channel holds the next link too: the other person signs in."""
    path = linked(live, asks_two(live, job), listener)
    command = job.incident()["proposal"]
    with live.client() as holder:
        assert "Approve as the first of two" in holder.get(path).text
        assert state_of(job, command)["state"] == "proposed"
        done = holder.post(path, data={"verdict": "approve", "name": "Ada Lovelace"})
        assert done.status_code == 303
        assert state_of(job, command)["state"] == "approved_once"
        assert "This link was used" in holder.get(path).text
        listener.wait_for(lambda told: any("approved_once" in m["topics"] for m in told))
        told = listener.received[-1].json()
        asked = f"approved by {first_of(told)}, a second person decides"
        assert asked in told["title"]
        assert "it needs a second person" in told["text"]
        next_link = told["links"]["Decide without signing in"].removeprefix(live.url)
        again = holder.post(next_link, data={"verdict": "approve", "name": "Grace Hopper"})
        assert again.status_code == 409
        assert re.search("approved it without signing in", again.text)
    with named(live, "Grace Hopper") as grace:
        assert say(grace, job, command).json()["state"] == "approved"


def first_of(told: dict[str, Any]) -> str:
    return str(told["incident"]["proposal"]["first_approved_by"])
