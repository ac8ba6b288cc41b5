"""Many runs: searched, filtered, sorted, paged, tagged, and taken away as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spikeguard_client import Client
from spikeguard_protocol import AttemptEnded, AttemptStarted, Kind, Role, RunId
from spikeguard_protocol.identity import MAX_TAGS
from tests.server.face.conftest import Job

if TYPE_CHECKING:
    from tests.server.face.conftest import Live

PROJECT = "fleet"
NAMES = ("adam", "bert-1", "bert_2", "gpt", "opt")


@pytest.fixture(scope="module")
def fleet(live: Live) -> list[Job]:
    """Five runs of a project of their own: the longer the name comes, the further it is."""
    jobs = [Job(live, name, PROJECT).start() for name in NAMES]
    for at, job in enumerate(jobs[1:]):  # the first has measured nothing
        job.train(3 + 2 * at)
    jobs[3].spike()
    jobs[4].send(AttemptEnded("finished"))
    return jobs


def listed(live: Live, **query: Any) -> list[str]:
    """Every page of two, one after the other."""
    found, cursor = list[str](), None
    with live.client(Role.VIEWER) as viewer:
        while True:
            asked = {"project": PROJECT, "limit": 2, "cursor": cursor, **query}
            answer = viewer.get(
                "/v1/runs", params={k: v for k, v in asked.items() if v is not None}
            )
            assert answer.status_code == 200, answer.text
            found += [item["name"] for item in answer.json()["items"]]
            if (cursor := answer.json()["next_cursor"]) is None:
                return found


@pytest.mark.usefixtures("fleet")
def test_runs_are_sorted_by_any_column_page_by_page_and_what_was_not_measured_comes_last(
    live: Live,
) -> None:
    assert listed(live, sort="name", descending=False) == list(NAMES)
    assert listed(live, sort="step", descending=False) == ["bert-1", "bert_2", "opt", "gpt", "adam"]
    assert listed(live, sort="step") == ["gpt", "opt", "bert_2", "bert-1", "adam"]
    assert listed(live, sort="created") == listed(live) == list(reversed(NAMES))
    assert listed(live, sort="urgency") == ["gpt", "bert_2", "bert-1", "adam", "opt"]
    for word in ("heard", "loss", "grad_norm", "tokens_per_second", "incidents"):
        assert sorted(listed(live, sort=word)) == list(NAMES), word


@pytest.mark.usefixtures("fleet")
def test_runs_are_found_by_name_state_and_open_incident(live: Live) -> None:
    assert listed(live, search="BERT", sort="name") == ["bert_2", "bert-1"]
    assert listed(live, search="bert_") == ["bert_2"]  # no pattern of SQL
    assert listed(live, search="fleet/opt") == ["opt"]
    assert listed(live, search="%") == []
    assert listed(live, state="ended") == ["opt"]
    assert listed(live, open_kind="any") == ["gpt"]
    [kind] = [run["open_kind"] for run in page(live, open_kind="any")["items"]]
    assert [listed(live, open_kind=one.value) for one in Kind].count(["gpt"]) == 1
    assert listed(live, open_kind=kind) == ["gpt"]
    assert page(live, count=True, limit=1)["total"] == len(NAMES)


def page(live: Live, **query: Any) -> dict[str, Any]:
    with live.client(Role.VIEWER) as viewer:
        answer: dict[str, Any] = viewer.get("/v1/runs", params={"project": PROJECT, **query}).json()
        return answer


@pytest.mark.parametrize("query", [
    {"search": "x" * 101}, {"search": "a\x00b"}, {"tag": ["t"] * 6}, {"tag": "=cmd"},
    {"sort": "secret"}, {"open_kind": "bad"}, {"sort": "step", "cursor": "WyIxIiwiOSJd"},
])  # fmt: skip
def test_what_no_list_can_be_asked_is_refused_with_its_field(
    live: Live, query: dict[str, Any]
) -> None:
    with live.client(Role.VIEWER) as viewer:
        answer = viewer.get("/v1/runs", params=query)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"].partition(".")[0] in query


def test_a_job_tells_tags_of_its_run_and_what_is_none_is_left_out(live: Live) -> None:
    job = Job(live, "told", "fleet-told")
    told = {"tags": "sweep-9,=cmd,lr=1e-4," + ",".join(f"n{n}" for n in range(40))}
    job.send(AttemptStarted(None, 1, (), "test", settings=told))
    ada = Client(live.url, live.tokens[Role.OPERATOR]).signed_in("Ada Lovelace")
    run = RunId("fleet-told", "told")
    [found] = ada.runs(project="fleet-told", tag="sweep-9")
    assert len(found["tags"]) == MAX_TAGS
    assert {"sweep-9", "lr=1e-4"} < set(found["tags"])
    [entry] = [one for one in ada.audit(run) if one["action"] == "tagged"]
    assert (entry["actor"], entry["reason"]) == ("server", "told by attempt 1")
    job.send(AttemptEnded("done"))
    with live.client(Role.ADMIN) as admin:
        assert admin.delete(job.path, params={"reason": "x"}).status_code == 204
    Job(live, "told", "fleet-told").start()
    assert not list(ada.runs(project="fleet-told", tag="sweep-9"))  # they went with the run
