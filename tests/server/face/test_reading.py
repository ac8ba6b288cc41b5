"""Reading over HTTP: runs found, sorted and paged, curves, incidents, audit, as its shape says."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import asdict
from html import unescape
from typing import Any

import pytest
import sqlalchemy as sql

from spikeguard_cli.wording import run_row
from spikeguard_client import Client
from spikeguard_protocol import (
    Ability,
    Answer,
    AttemptEnded,
    AttemptStarted,
    BatchDetail,
    Kind,
    Role,
    RunId,
    TokenHistogram,
    abilities_to_settings,
)
from spikeguard_protocol.encoding import from_json
from spikeguard_protocol.identity import MAX_TAGS
from tests.server.face.conftest import Job, Live


def get(live: Live, path: str, **query: Any) -> Any:
    """What a viewer reads."""
    with live.client(Role.VIEWER) as client:
        answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_run_is_shown_as_it_stands(live: Live, spiked: Job) -> None:
    run = get(live, spiked.path)
    assert (run["id"], run["state"], run["last_step"]) == ("spiked", "live", spiked.step)
    assert (run["open_incident"], run["incidents"], run["live_attempts"]) == (1, 1, 1)
    assert run["waiting_approval"] is True
    assert 0 <= run["age_s"] < 600
    assert [segment["current"] for segment in run["segments"]] == [True]
    assert {target["name"] for target in run["targets"]} >= {"step-100", "step-400"}
    assert any(target["protected"] for target in run["targets"])


def test_what_warned_and_came_to_nothing_is_shown_with_the_run(live: Live, job: Job) -> None:
    job.train(400)
    job.train(3, grad_norm=5.0)
    job.train(60)
    (warned,) = get(live, job.path)["precursors"]
    assert (warned["signal"], warned["attempt"], warned["value"]) == ("grad_norm", 1, 5.0)
    assert warned["step"] in (401, 402)
    assert warned["z"] > 8
    job.spike()
    assert get(live, job.path)["precursors"] == [warned]


def test_what_can_be_done_in_a_job_is_shown_with_its_attempt(live: Live, job: Job) -> None:
    """The newest introduction holds, and the settings are free of it."""
    rows = [
        Ability("clip", Answer.YES, cost="one reduction a step"),
        Ability("rollback", Answer.UNKNOWN, "the loop has made no step yet"),
    ]
    known = Ability("rollback", Answer.NO, "the loop reads ahead", "Take it from guard.batches()")
    for told in (rows, [rows[0], known]):
        settings = {"optimizer": "AdamW", **abilities_to_settings(told)}
        job.send(AttemptStarted(None, 8, ("scale_lr",), "0.1.0", 4096, settings))
        (attempt,) = get(live, job.path)["attempts"]
        assert attempt["abilities"] == [asdict(ability) for ability in told]
        assert attempt["settings"] == {"optimizer": "AdamW"}


def test_a_signal_that_the_run_never_sent_is_refused_with_those_there_are(
    live: Live, job: Job
) -> None:
    """A standard one, which pages ask for beside it, is answered."""
    job.train(2, mine=1.0)
    with live.client(Role.VIEWER) as client:
        refused = client.get(f"{job.path}/series", params={"signals": "nope"})
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert error["field"] == "signals"
    assert "mine" in error["remedy"]
    assert get(live, f"{job.path}/series", signals="nope,lr")["segments"]


def test_what_is_not_finite_comes_back_as_it_went(live: Live, job: Job) -> None:
    job.train(2, mine=math.nan)
    job.train(1, mine=math.inf)
    job.train(1, mine=-math.inf)
    job.train(1)
    series = get(live, f"{job.path}/series", signals="mine,loss")
    (segment,) = series["segments"]
    assert segment["steps"] == [1, 2, 3, 4, 5]
    assert segment["values"]["mine"] == ["nan", "nan", "inf", "-inf", None]
    assert math.isnan(from_json(float, segment["values"]["mine"][0], "mine"))
    assert segment["batches"] == [[step - 1, step] for step in segment["steps"]]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"signals": ""}, "signals"),
        ({"signals": "a b"}, "signals"),
        ({"signals": ",".join(f"s{i}" for i in range(17))}, "signals"),
        ({"first": 9, "last": 3}, "last"),
        ({"points": 1}, "points"),
        ({"first": -1}, "first"),
    ],
)
def test_a_wrong_window_is_refused_by_the_name_of_its_field(
    live: Live, spiked: Job, query: dict[str, Any], field: str
) -> None:
    with live.client(Role.VIEWER) as client:
        answer = client.get(f"{spiked.path}/series", params=query)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == field


def test_a_list_is_read_page_by_page_without_loss_or_repetition(live: Live, spiked: Job) -> None:
    pages, cursor = [], None
    while True:
        query = {"limit": 2} if cursor is None else {"limit": 2, "cursor": cursor}
        page = get(live, f"{spiked.path}/audit", **query)
        pages += [entry["number"] for entry in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert pages == list(range(len(pages), 0, -1))
    assert len(pages) > 2


@pytest.mark.parametrize("cursor", ["x", "bm90IGpzb24", "WyJhIiwgImIiXQ", "W251bGwsIG51bGxd"])
def test_a_cursor_of_another_making_is_refused(live: Live, cursor: str) -> None:
    for path in ("/v1/runs", "/v1/incidents", "/v1/runs/default/spiked/audit"):
        with live.client(Role.VIEWER) as client:
            answer = client.get(path, params={"cursor": cursor})
        assert answer.status_code in (404, 422), answer.text


def test_incidents_are_found_by_state_and_by_run(live: Live, spiked: Job, job: Job) -> None:
    del spiked
    spikes = get(live, "/v1/incidents", state=["open", "recovering"], run="default/spiked")["items"]
    assert [incident["id"] for incident in spikes] == ["spiked#1"]
    assert get(live, "/v1/incidents", state="closed", run="spiked")["items"] == []
    assert get(live, "/v1/incidents", run=f"default/{job.run}")["items"] == []


def test_the_curves_around_an_incident_come_with_its_trend(live: Live, spiked: Job) -> None:
    series = get(live, f"{spiked.path}/incidents/1/series", signals="loss")
    (segment,) = series["segments"]
    assert segment["steps"][0] < 401 <= segment["steps"][-1]
    assert series["trend"]["level"] == pytest.approx(2.1, abs=0.2)


def a_batch(step: int, rank: int = 0, loss: float | None = 2.0, **said: Any) -> BatchDetail:
    histogram = TokenHistogram(
        512, 120, step - 48, (0.4, 0.6), (0.0, 1.0), (7,), (0.4,), (0.0,), ("\x00",)
    )
    return BatchDetail(0, step, rank, step - 1, ("doc",), 0, 16, 3, loss, None, histogram, **said)


def test_of_the_batches_near_an_onset_the_page_shows_the_one_that_it_hurt_most(
    live: Live, job: Job
) -> None:
    """Of a rank's loss that is no number, too; told twice, the first counts."""
    job.spike()
    onset, path = job.incident()["onset_step"], f"/incident/{job.project}/{job.run}/1"
    with live.browser(live.session("Ada")) as page:
        assert "The batch of step" not in page.get(path).text
        ranks = [a_batch(onset, rank, loss) for rank, loss in ((0, 9.0), (2, math.nan))]
        job.send(*(a_batch(step) for step in range(onset - 20, onset)), *ranks)
        job.send(a_batch(onset, 2, 1.0))
        shown = page.get(path).text
    assert f"The batch of step {onset}, rank 2" in shown
    assert "Sequence 4 of 16 on rank 2 has a loss that is not finite" in shown
    assert "40.0% of the batch's tokens had not occurred in them" in unescape(shown)


def test_there_is_no_post_mortem_of_an_open_incident(live: Live, spiked: Job) -> None:
    with live.client(Role.VIEWER) as client:
        answer = client.get(f"{spiked.path}/incidents/1/postmortem")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_closed")


@pytest.mark.parametrize(
    "path", ["/v1/runs/default/none", "/v1/runs/default/spiked/incidents/7", "/v1/none", "/x.php"]
)
def test_what_is_not_there_is_said_in_the_one_shape(live: Live, spiked: Job, path: str) -> None:
    del spiked
    with live.client(Role.VIEWER) as client:
        answer = client.get(path)
        refused = client.patch("/v1/policy")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, PUT")


@pytest.mark.parametrize(
    ("form", "media", "beginning"),
    [
        ("md", "text/markdown; charset=utf-8", b"#"),
        ("html", "text/html; charset=utf-8", b"<!doctype html>"),
        ("json", "application/json", b"{"),
    ],
)
def test_a_closed_incident_has_a_post_mortem_to_read_and_to_keep(
    live: Live, ended: Job, form: str, media: str, beginning: bytes
) -> None:
    path = f"{ended.path}/incidents/1/postmortem"
    with live.client(Role.VIEWER) as client:
        answer = client.get(path, params={"format": form})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == media
    assert f'filename="{ended.run}-1-postmortem.{form}"' in answer.headers["content-disposition"]
    assert answer.content.lower().lstrip().startswith(beginning)
    assert "script-src" not in answer.headers["content-security-policy"]


@pytest.fixture(scope="module")
def ended(new_job: Callable[[str], Job]) -> Job:
    """A job that ended in the middle of a spike, once its post-mortem was written."""
    job = new_job("ended").spike()
    end(job)
    assert job.incident()["state"] == "closed"
    return job


def end(job: Job) -> None:
    """End the job, and wait for its post-mortem."""
    job.send(AttemptEnded("stopped"))
    job.reported()


@pytest.mark.parametrize(("reason", "told"), [("RuntimeError", True), ("finished", False)])
def test_a_run_says_look_at_the_job_unless_it_ended_on_purpose(
    live: Live, job: Job, reason: str, told: bool
) -> None:
    job.train(10)
    assert get(live, job.path)["look_at_job"] is None
    job.send(AttemptEnded(reason))
    run = get(live, job.path)
    said = "Look at the job: attempt 1 ended: RuntimeError." if told else None
    assert (run["state"], run["look_at_job"]) == ("ended", said)
    assert "look at the job" in run_row(run) if told else run_row(run)[-1] == "-"


def test_an_answer_of_several_reads_is_of_one_moment(live: Live, job: Job) -> None:
    """A target that goes between two reads of one answer was a 500."""
    job.send(job.steps(50), job.saved())
    toggled = "CASE WHEN deleted_at IS NULL THEN now() END"
    mine = "run_id = (SELECT run_id FROM runs WHERE name = :run)"
    goes = sql.text(f"UPDATE targets SET deleted_at = {toggled} WHERE {mine}")
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            with live.engine.begin() as connection:
                connection.execute(goes, {"run": job.run})

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        told = [get(live, f"{job.path}/options")["targets"] for _ in range(40)]
    finally:
        over.set()
        other.join()
    assert {len(targets) for targets in told} == {0, 1}


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
    {"stat": "live"}, {"run": "a/b/c"}, {"state": "dead"},
    {"search": "x" * 101}, {"search": "a\x00b"}, {"tag": ["t"] * 6}, {"tag": "=cmd"},
    {"sort": "secret"}, {"open_kind": "bad"}, {"sort": "step", "cursor": "WyIxIiwiOSJd"},
])  # fmt: skip
def test_what_no_list_can_be_asked_is_refused_with_its_field(
    live: Live, query: dict[str, Any]
) -> None:
    with live.client(Role.VIEWER) as viewer:
        answers = [viewer.get(path, params=query) for path in ("/v1/runs", "/v1/incidents")]
    for answer in answers:
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
