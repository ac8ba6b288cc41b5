"""What people order of a run that has no incident: it is fenced, it expires, it is followed."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import unescape

import pytest
import sqlalchemy as sql

from spikeguard_client import ApiError
from spikeguard_protocol import (
    OWN_RULE,
    AttemptEnded,
    AttemptStarted,
    CheckpointNow,
    CommandId,
    CommandResult,
    Order,
    ResultState,
    Role,
    RunId,
    SegmentReason,
    SegmentStarted,
    Stop,
)
from tests.agent.wire import await_that
from tests.server.face.conftest import VERBS, Job, Live, Typed, client_of
from tests.server.face.test_decisions import browser as browser_of
from tests.server.face.test_judgements import postmortem
from tests.server.face.test_pages import browser, log_in, waiting


@pytest.fixture
def training(live: Live, project: str) -> Job:
    """A run of that project, calm."""
    job = Job(live, "gpt", project=project).start()
    job.train(50)
    return job


def orders(job: Job) -> list[Order]:
    """What the job is told to do now."""
    return list(job.send().orders)


def answer(job: Job, command: str, state: ResultState, reason: str) -> None:
    job.send(CommandResult(command, state, reason, job.step))


def refusal(call: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        call()
    return refused.value


def test_a_checkpoint_is_ordered_carried_out_and_on_record(
    live: Live, project: str, training: Job
) -> None:
    ada, run = client_of(live, project), training.id
    made = ada.order(run, "checkpoint_now", "the disk goes down")
    assert (made["id"], made["state"]) == (f"{project}/gpt#0.1", "approved")
    assert (made["proposed_by"], made["decided_by"]) == ("Ada", "Ada")
    [order] = orders(training)
    assert (order.command, order.action) == (made["id"], CheckpointNow())
    assert (order.attempt, order.expires_at_step is not None) == (training.attempt, True)
    assert 500.0 < order.expires_in_s <= 600.0
    answer(training, order.command, ResultState.APPLIED, "step-50")
    assert orders(training) == []
    [done] = ada.run_commands(run)
    assert (done["state"], done["result"], done["applied_step"]) == ("judged", "step-50", 50)
    assert done["judgement"] == ("nothing to judge: it changes nothing of the training")
    told = [(e["action"], e["actor"]) for e in ada.audit(run) if e["subject"] == made["id"]]
    assert told[::-1] == [
        ("propose", "Ada"), ("approve", "Ada"), ("deliver", "server"),
        ("apply", "attempt 1"), ("judge", "server"),
    ]  # fmt: skip
    assert waiting(live, project) == []


def test_a_stop_ends_the_run_and_a_failure_is_told(live: Live, project: str, training: Job) -> None:
    ada, run = client_of(live, project), training.id
    first = ada.order(run, "stop", "wrong config")
    [order] = orders(training)
    assert order.action == Stop()
    answer(training, first["id"], ResultState.FAILED, "a rank did not answer")
    [(waits, title)] = waiting(live, project)
    assert (waits, title.endswith("stop the attempt on all ranks (a rank did not answer)")) == (
        "failed command", True,
    )  # fmt: skip
    with browser(live, project) as page:
        assert "Ada ordered it: “wrong config”." in page.get("/inbox").text
    ada.order(run, "stop", "wrong config, again")
    assert waiting(live, project) == []
    [again] = orders(training)
    assert again.command == f"{project}/gpt#0.2"
    answer(training, again.command, ResultState.APPLIED, "the loop ends at this step")
    training.send(AttemptEnded("stopped"))
    states = [(c["number"], c["state"], c["result"]) for c in ada.run_commands(run)]
    assert states == [
        (2, "judged", "the loop ends at this step"), (1, "failed", "a rank did not answer"),
    ]  # fmt: skip
    error = refusal(lambda: ada.order(run, "stop", "once more"))
    assert (error.status, error.code) == (409, "illegal_move")
    assert "no attempt that trains" in str(error)


def test_an_order_of_which_nothing_was_heard_again_waits_for_somebody(
    live: Live, project: str, training: Job
) -> None:
    ada = client_of(live, project)
    ada.order(training.id, "checkpoint_now", "before the maintenance")
    assert orders(training)
    training.send(AttemptEnded("killed"))
    Job(live, "gpt", project=project).start().train(10)
    assert [each["state"] for each in ada.run_commands(training.id)] == ["unknown"]
    assert [waits for waits, _ in waiting(live, project)] == ["failed command"]


def test_what_nobody_fetches_in_time_or_of_an_attempt_that_ended_is_void(
    live: Live, project: str, training: Job
) -> None:
    ada, run = client_of(live, project), training.id
    ada.order(run, "checkpoint_now", "before the maintenance", 60.0)
    with live.engine.begin() as connection:
        late = "update commands set expires_at = now() - interval '1 s' where run_id = :key"
        key = connection.execute(
            sql.text("select run_id from runs where project = :p"), {"p": project}
        ).scalar_one()
        connection.execute(sql.text(late), {"key": key})
    await_that(lambda: next(iter(ada.run_commands(run)))["state"] == "undelivered")
    assert orders(training) == []
    ada.order(run, "stop", "wrong config")
    training.send(AttemptEnded("crashed"))
    again = Job(live, "gpt", project=project).start()
    assert orders(again) == []
    assert [c["state"] for c in ada.run_commands(run)] == ["void", "undelivered"]


def test_one_of_each_verb_at_a_time_and_what_was_not_fetched_is_taken_back(
    live: Live, project: str, training: Job
) -> None:
    ada, run = client_of(live, project), training.id
    made = ada.order(run, "stop", "wrong config")
    error = refusal(lambda: ada.order(run, "stop", "twice"))
    assert (error.status, f"{made['id']} was approved by Ada" in str(error)) == (409, True)
    ada.order(run, "checkpoint_now", "but save first")
    assert len(orders(training)) == 2
    assert refusal(lambda: ada.reject(CommandId.parse(made["id"]), 1, "no")).status == 409
    other = Job(live, "other", project=project).start()
    other.train(10)
    given = ada.order(other.id, "stop", "a mistake")
    back = ada.reject(CommandId.parse(given["id"]), 1, "it was the other run")
    assert (back["state"], back["decision_reason"]) == ("rejected", "it was the other run")
    assert orders(other) == []


def test_what_the_job_cannot_do_or_nobody_may_ask_is_refused(
    live: Live, project: str, training: Job
) -> None:
    ada, run = client_of(live, project), training.id
    with live.client(Role.OPERATOR) as nobody:
        body = {"verb": "stop", "reason": "x"}
        assert nobody.post(f"{training.path}/commands", json=body).status_code == 403
    viewer = client_of(live, project, role=Role.VIEWER)
    assert refusal(lambda: viewer.order(run, "stop", "x")).status == 403
    assert refusal(lambda: ada.order(run, "rollback", "x")).status == 422
    assert refusal(lambda: ada.order(run, "stop", " ")).status == 422
    assert refusal(lambda: ada.order(run, "stop", "x", 1e9)).status == 422
    assert refusal(lambda: ada.order(RunId(project, "none"), "stop", "x")).status == 404
    unheard = CommandId.parse(f"{project}/gpt#0.9")
    assert refusal(lambda: ada.reject(unheard, 1, "x")).status == 404
    settings = {"ability.stop": "no", "ability.stop.reason": "the loop is a framework's"}
    verbs = tuple(verb for verb in VERBS if verb != "stop")
    training.send(AttemptStarted(None, 1, verbs, "test", 4096, settings))
    error = refusal(lambda: ada.order(run, "stop", "x"))
    assert (error.status, error.error["field"]) == (422, "verb")
    assert "the loop is a framework's" in str(error)


def test_the_kill_switch_stops_it_and_takes_back_what_was_not_fetched(
    live: Live, project: str, training: Job
) -> None:
    ada, run = client_of(live, project), training.id
    ada.order(run, "checkpoint_now", "before the maintenance")
    ada.halt(project, "a bad checkpoint went round")
    assert orders(training) == []
    assert [c["state"] for c in ada.run_commands(run)] == ["halted"]
    error = refusal(lambda: ada.order(run, "stop", "x"))
    assert (error.status, "kill switch" in str(error)) == (409, True)


def test_nothing_is_ordered_of_a_run_with_two_live_attempts_and_every_face_says_why(
    live: Live, project: str, training: Job
) -> None:
    ada, run, twin = client_of(live, project), training.id, Job(live, "gpt", project=project)
    twin.start().train(10)
    training.train(10)
    error = refusal(lambda: ada.order(run, "stop", "x"))
    why = f"2 attempts of {run} train at once: none gets an order"
    assert (error.status, f"{why}. End all but one first" in str(error)) == (409, True)
    told = {(each["possible"], each["reason"]) for each in ada.options(run)["verbs"]}
    assert told == {(False, why)}
    with browser_of(live, live.person("Ada")) as page:
        assert why in page.get(f"/act/{project}/gpt").text
    training.send(AttemptEnded("killed"))
    assert ada.order(run, "stop", "x")["state"] == "approved"


def test_nothing_is_approved_that_two_live_attempts_would_wait_for(
    live: Live, project: str
) -> None:
    ada, forgotten = client_of(live, project), Job(live, "gpt", project=project).start()
    offer = Job(live, "gpt", project=project).start().spike().offer()
    forgotten.train(10)
    error = refusal(lambda: ada.approve(*offer))
    assert (error.status, "2 attempts of" in str(error)) == (409, True)
    forgotten.send(AttemptEnded("killed"))
    assert ada.approve(*offer)["state"] == "approved"


def test_the_command_line_orders_lists_and_takes_back(training: Job, typed: Typed) -> None:
    name = f"{training.project}/{training.run}"
    assert "Nothing was ordered of" in typed("run", name)
    said = typed("run", name, "checkpoint", "--reason", "maintenance\x1b[2J")
    assert f"Ordered {name}#0.1: save a checkpoint at the next step. The job has 10.0 min" in said
    assert "Nothing was ordered." in typed("run", name, "stop", "--reason", "x", status=1)
    stop = ("run", name, "stop", "--yes", "--within", "2h", "--json")
    assert json.loads(typed(*stop, "--reason", "x"))["state"] == "approved"
    assert "is rejected" in typed("run", name, "reject", "2", "--reason", "the other run")
    [order] = orders(training)
    answer(training, order.command, ResultState.APPLIED, "step-50\x1b[2J")
    listed = typed("run", name)
    assert "carried out" in listed
    assert "step-50" in listed
    assert "\x1b" not in listed
    for wrong in (
        ("stop", "--yes"), ("stop", "3", "--reason", "x"), ("reject",), ("reject", "9"),
        ("checkpoint", "--reason", "x", "--within", "3d"),
    ):  # fmt: skip
        typed("run", name, *wrong, status=1)


def test_one_command_stops_every_live_run_of_a_project_and_names_the_one_that_it_could_not(
    live: Live, project: str, training: Job, typed: Typed
) -> None:
    spiking = Job(live, "spiking", project=project).start()
    spiking.train(60)
    spiking.train(3, excess=4.0)  # an incident is open: the stop takes its place
    bound = Job(live, "bound", project=project)
    verbs = tuple(verb for verb in VERBS if verb != "stop")
    start = SegmentStarted(0, SegmentReason.START, None, 0)
    bound.send(AttemptStarted(None, 1, verbs, "test", tokens_per_step=4096), start)
    every = ("run", f"{project}/*", "stop", "--reason", "power cut")
    assert "Nothing was ordered." in typed(*every, status=1)
    said = typed(*every, "--yes", status=1)
    assert f"{project}/bound was not ordered to stop" in said
    for job in (training, spiking):
        assert Stop() in [order.action for order in orders(job)]
    assert orders(bound) == []
    assert "takes stop alone" in typed("run", "*", "checkpoint", "--reason", "x", status=1)


def test_what_the_emergency_rule_of_the_job_did_is_told_with_the_incident(live: Live) -> None:
    """The job ordered it itself; the server learns of it by its result."""
    job = Job(live, "emergency")
    job.send(
        AttemptStarted(
            None, 1, VERBS, "test",
            settings={"emergency_factor": "0.5", "emergency_steps": "100"},
        ),
        SegmentStarted(0, SegmentReason.START, None, 0),
    )  # fmt: skip
    job.spike()
    at, named = job.step, f"{job.project}/{job.run}#0.{OWN_RULE + job.step}"
    for _ in range(2):
        answer(job, named, ResultState.APPLIED, "x0.5 for 100 steps")
    refused = f"{job.project}/{job.run}#0.{OWN_RULE + 1}"
    answer(job, refused, ResultState.REFUSED, "orders_a_day is used up")
    job.send(CommandResult(f"{named}9", ResultState.APPLIED, "no rule's", at))
    job.send(CommandResult(f"{job.project}/{job.run}#0.7", ResultState.APPLIED, "nor that", at))
    told = f"rate by 0.5 after step {at:,}, for 100 steps, up to step {at + 100:,}."
    with live.person("Ada") as ada, browser_of(live, ada) as seen:
        page = seen.get(f"/incident/{job.project}/{job.run}/1").text
    assert told in unescape(page)
    with live.person("Ada") as ada:
        [ordered, other] = ada.get(f"{job.path}/commands").json()["items"]
        assert (ordered["verb"], ordered["state"]) == ("scale_lr", "applied")
        assert named.endswith(ordered["id"])
        assert (other["state"], other["result"]) == ("refused", "orders_a_day is used up")
        assert ordered["proposed_by"] == "the emergency rule of the job"
        made = ada.post(
            f"{job.path}/commands", json={"verb": "checkpoint_now", "reason": "the disk goes down"}
        ).json()
        assert made["number"] == 1
    job.train(110, excess=3.0)
    job.send(AttemptEnded("finished"))
    assert told in postmortem(job)
    with live.client() as browser:
        log_in(browser, live.tokens[Role.VIEWER], "Vera")
        assert told in browser.get(f"/incident/{job.project}/{job.run}/1").text
