"""People act, not only answer: another target, other batches, a lower rate, by the same rails."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from html import unescape
from typing import Any, TypeVar

import pytest

from spikeguard_client import Client
from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    BatchRange,
    CommandId,
    CommandResult,
    IncidentId,
    ResultState,
    Role,
    Rollback,
    RunId,
    ScaleLr,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
    Watch,
)
from spikeguard_server.access.grants import Grant
from tests.agent.wire import await_that
from tests.server.face.conftest import VERBS, Job, Live, Typed, client_of
from tests.server.face.test_decisions import confirm_page
from tests.server.face.test_run_commands import orders, refusal

T = TypeVar("T")
LIMITS = {
    "lr_factor_least": "0.1", "lr_steps_most": "500", "skip_batches_most": "50",
    "rollback_steps_most": "350",
}  # fmt: skip


@pytest.fixture
def calm(live: Live, project: str) -> Job:
    """A run with targets at 100, 200 and 300, and no incident."""
    job = Job(live, "gpt", project=project).start()
    for _ in range(3):
        job.send(job.steps(100), job.saved())
    job.train(20)
    return job


def go_back(job: Job, command: str, step: int, segment: int) -> None:
    """The job rolls back to `step` and says so."""
    parent = SegmentPoint(SegmentId(job.attempt, segment - 1), step)
    job.send(
        SegmentStarted(segment, SegmentReason.ROLLBACK, parent, step, command),
        CommandResult(command, ResultState.APPLIED, f"back to step {step}", job.step),
    )
    job.step = step


def train_on(job: Job, segment: int, steps: int, excess: float = 0.0) -> None:
    job.send(replace(job.steps(steps, excess), segment=segment))


def test_a_proposal_passes_over_a_checkpoint_in_which_damage_was_found_and_every_face_says_why(
    live: Live, project: str
) -> None:
    """A value that no batch reads moves no signal: only the checkpoint shows it."""
    job = Job(live, "gpt", project=project).start()
    nan = "3 of 768 values of model.wte.weight are not finite"
    for damage in (None, None, nan, nan):
        job.send(job.steps(100), replace(job.saved(), damage=damage))
    proposal = job.climb().incident()["proposal"]
    assert proposal["arguments"]["target"] == "step-200"
    why = f"(step-300 is newer and damaged: {nan})"
    assert why in proposal["reason"]
    token = live.operator(project)
    with live.browser(token) as page:
        first = unescape(page.get(f"/incident/{project}/gpt/1").text)
        assert f"step 200 is on disk (step-200); step-300 is damaged: {nan}" in first
        assert why in unescape(page.get(confirm_page(job, proposal)).text)
        page.headers["authorization"] = f"Bearer {token}"
        assert nan in unescape(page.get(f"/act/{project}/gpt").text)
        known = page.get(job.path).json()["targets"]
    assert [(t["health"], t["damage"]) for t in known][:2] == [("damaged", nan)] * 2


def test_another_target_takes_the_place_of_the_proposal_by_one_act(
    live: Live, project: str, spiking: Job
) -> None:
    ada, incident = client_of(live, project), spiking.incident_id
    options = ada.options(spiking.id)
    proposal, revision = spiking.offer()
    assert (options["command"], options["revision"]) == (proposal.number, revision)
    named = {target["name"]: target for target in options["targets"]}
    assert [named[name]["step"] for name in named] == [400, 300, 200, 100]
    older = named["step-200"]
    assert older["cost"]["steps"] == options["step"] - 200
    assert older["age_s"] >= 0.0
    made = ada.order_instead(
        incident, "rollback", "the shard began before 300", proposal=proposal, revision=revision,
        target="step-200", skip=(390, 420), expect="lower",
    )  # fmt: skip
    assert (made["state"], made["proposed_by"], made["decided_by"]) == ("approved", "Ada", "Ada")
    before, own = ada.incident(incident)["commands"][-2:]
    assert (before["state"], own["id"]) == ("superseded", made["id"])
    assert before["end_reason"] == (
        "Ada ordered to roll back to step 200 (step-200), skip batches 390 to 419 (30) instead"
    )
    [order] = orders(spiking)
    assert order.action == Rollback("step-200", 200, BatchRange(390, 420))
    go_back(spiking, order.command, 200, 1)
    train_on(spiking, 1, 120)
    found = next(iter(ada.interventions(spiking.id)))
    assert found["why"] == "the shard began before 300"
    assert (found["by"], found["expect"]) == ("Ada", "lower")


def test_a_job_that_was_stopped_is_asked_nothing_more_before_it_says_that_it_ended(
    live: Live, project: str, spiking: Job
) -> None:
    ada, (proposal, revision) = client_of(live, project), spiking.offer()
    ada.order_instead(
        spiking.incident_id, "stop", "it burns money", proposal=proposal, revision=revision
    )
    assert refusal(lambda: ada.order_instead(spiking.incident_id, "stop", "twice")).status == 409
    [order] = orders(spiking)
    spiking.send(CommandResult(order.command, ResultState.APPLIED, "stopped", spiking.step))
    spiking.train(10, excess=3.0)
    assert spiking.incident()["proposal"] is None
    spiking.send(AttemptEnded("stopped"))
    newest = spiking.reported()["commands"][-1]
    assert (newest["id"], newest["state"]) == (order.command, "judged")
    assert newest["judgement"] == "nothing to judge: it stopped the run"


def test_a_proposal_that_changed_or_was_answered_meanwhile_is_not_replaced(
    live: Live, project: str, spiking: Job
) -> None:
    ada, bob = client_of(live, project), client_of(live, project, "Bob")
    incident, (proposal, revision) = spiking.incident_id, spiking.offer()
    unseen: tuple[tuple[CommandId | None, int | None], ...] = (
        (None, None), (proposal, revision + 1),
    )  # fmt: skip
    for seen, at in unseen:
        older = partial(bob.order_instead, incident, "rollback", "older", target="step-100")
        error = refusal(partial(older, proposal=seen, revision=at))
        assert (error.code, error.error["current"]["id"]) == ("revision_changed", str(proposal))
        wrong = partial(bob.order_instead, incident, "rollback", "older", target="step-999")
        error = refusal(partial(wrong, proposal=seen, revision=at))
        assert (error.status, error.error["field"]) == (422, "target")
    ada.approve(proposal, revision)
    error = refusal(
        lambda: bob.order_instead(
            incident, "rollback", "older", proposal=proposal, revision=revision, target="step-100"
        )
    )
    assert (error.status, "was approved by Ada" in str(error)) == (409, True)
    assert len(orders(spiking)) == 1


def test_what_the_job_would_refuse_is_refused_with_field_limit_and_remedy(
    live: Live, project: str, calm: Job
) -> None:
    ada, run = client_of(live, project), calm.id
    other = Job(live, "other", project=project).start()
    other.send(other.steps(100), other.saved())
    calm.send(AttemptStarted(None, 1, VERBS, "test", 4096, LIMITS))
    wrong: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("rollback", {"target": "step-999"}, "target"),
        ("rollback", {}, "target"),
        ("rollback", {"target": "../../etc"}, "target"),
        ("rollback", {"target": "step-300", "skip": (299, 310)}, "skip"),
        ("rollback", {"target": "step-300", "skip": (300, 351)}, "skip"),
        ("rollback", {"target": "step-300", "lr_factor": 0.5}, "lr_factor"),
        ("scale_lr", {"factor": 0.05, "steps": 10}, "factor"),
        ("scale_lr", {"factor": 0.5, "steps": 501}, "steps"),
        ("scale_lr", {"factor": 1.5, "steps": 10}, "factor"),
        ("scale_lr", {"factor": 0.5}, "steps"),
        ("skip_batches", {"batches": (100, 110)}, "batches"),
        ("skip_batches", {"batches": (400, 400)}, "batches"),
        ("stop", {"factor": 0.5}, "factor"),
        ("watch", {"steps": 10}, "verb"),
    )
    for verb, given, field in wrong:
        error = refusal(partial(ada.order, run, verb, "x", **given))
        assert (error.status, field in (error.error["field"] or "")) == (422, True), (verb, given)
    calm.train(150)
    error = refusal(lambda: ada.order(run, "rollback", "x", target="step-100"))
    assert (error.status, "rollback_steps_most" in str(error)) == (422, True)
    assert list(ada.run_commands(run)) == []


def test_a_mitigation_is_offered_where_it_is_registered_and_ordered_by_its_name(
    live: Live, project: str, calm: Job
) -> None:
    """The page, the API and the client: by itself, and with a rollback."""
    ada, run = client_of(live, project), calm.id
    assert "apply" not in [each["verb"] for each in ada.options(run)["verbs"]]
    error = refusal(lambda: ada.order(run, "apply", "x", name="swap-data", steps=50))
    assert (error.status, error.error["field"]) == (422, "verb")
    registered = {**LIMITS, "mitigations": '{"swap-data": "20 % a step"}'}
    calm.send(AttemptStarted(None, 1, (*VERBS, "apply"), "test", 4096, registered))
    offered = ada.options(run)
    assert offered["mitigations"] == {"swap-data": "20 % a step"}
    assert "apply" in [each["verb"] for each in offered["verbs"]]
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"name": "tight-clip", "steps": 50}, "name"),
        ({"name": "swap-data"}, "steps"),
    )
    for given, field in wrong:
        error = refusal(partial(ada.order, run, "apply", "x", **given))
        assert (error.status, error.error["field"]) == (422, field)
    made = ada.order(
        run, "rollback", "it came back", target="step-300", apply="swap-data", apply_steps=50
    )
    assert made["arguments"] | {"apply": "swap-data", "apply_steps": 50} == made["arguments"]
    assert made["arguments"]["lr_steps"] is None


def test_a_target_that_is_not_healthy_is_allowed_with_a_warning_that_names_it(
    live: Live, project: str, calm: Job
) -> None:
    ada, run = client_of(live, project), calm.id
    made = ada.order(run, "rollback", "wrong data since 300", target="step-300")
    assert made["state"] == "approved"
    assert "step-300 is pending" in made["reason"]
    assert "the run reads batches 300 to 319 (20) again" in made["reason"]
    error = refusal(lambda: ada.order(run, "scale_lr", "too hot", factor=0.5, steps=50))
    assert (error.status, made["id"] in str(error)) == (409, True)


def test_a_rate_that_a_person_lowers_is_judged_by_what_the_loss_did(
    live: Live, project: str, calm: Job
) -> None:
    ada, run = client_of(live, project), calm.id
    made = ada.order(
        run, "scale_lr", "the norm creeps up", factor=0.5, steps=60, expect="lower", expect_size=0.1
    )
    [order] = orders(calm)
    assert order.action == ScaleLr(0.5, 60)
    calm.send(CommandResult(order.command, ResultState.APPLIED, "at half the rate", calm.step))
    [item] = ada.interventions(run)
    assert item["outcome"] == "not judged before step 384"
    train_on(calm, 0, 80, excess=-0.03)
    done = judged(ada, run)
    [item] = ada.interventions(run)
    assert (item["effect"] or 0.0) < 0.0
    assert (item["effect_error"] or 0.0) > 0.0
    assert done["judgement"] == item["outcome"]
    assert (item["by"], item["step"], item["why"]) == ("Ada", 320, "the norm creeps up")
    told = [(e["action"], e["actor"]) for e in ada.audit(run) if e["subject"] == made["id"]]
    assert told[::-1] == [
        ("propose", "Ada"), ("approve", "Ada"), ("deliver", "server"),
        ("apply", "attempt 1"), ("judge", "server"),
    ]  # fmt: skip


def test_a_rollback_that_went_on_with_other_data_is_corrected_once(
    live: Live, project: str, calm: Job
) -> None:
    ada, run = client_of(live, project), calm.id
    made = ada.order(run, "rollback", "the mix was wrong", target="step-200", expect="none")
    [order] = orders(calm)
    go_back(calm, order.command, 200, 1)
    said = "other data, back to step 200"
    for _ in range(2):
        calm.send(CommandResult(order.command, ResultState.APPLIED, said, 320))
    [done] = [c for c in ada.run_commands(run) if c["id"] == made["id"]]
    assert (done["state"], done["result"]) == ("applied", said)
    told = [e["reason"] for e in ada.audit(run) if e["action"] == "correct"]
    assert told == [said]


def test_whoever_watches_is_left_alone_for_the_steps_that_they_named(
    live: Live, project: str, spiking: Job
) -> None:
    ada, incident = client_of(live, project), spiking.incident_id
    proposal, revision = spiking.offer()
    ada.order_instead(
        incident, "watch", "I look at it", proposal=proposal, revision=revision, steps=30
    )
    [order] = orders(spiking)
    assert order.action == Watch(30)
    spiking.send(CommandResult(order.command, ResultState.APPLIED, "watching", spiking.step))
    spiking.train(10, excess=3.0)
    assert ada.incident(incident)["proposal"] is None
    with live.browser(live.operator(project)) as browser:
        page = browser.get(f"/incident/{project}/{spiking.run}/{incident.number}").text
    assert "Do nothing, look again after 30 steps. I look at it." in page


def test_a_run_with_an_open_incident_is_ordered_of_the_incident_alone(
    live: Live, project: str, spiking: Job
) -> None:
    ada, incident = client_of(live, project), spiking.incident_id
    error = refusal(lambda: ada.order(spiking.id, "rollback", "x", target="step-200"))
    assert (error.status, f"{incident} is open" in str(error)) == (409, True)
    nobody = live.token(Grant(Role.VIEWER, project, person="Ada"))
    viewer = Client(live.url, nobody)
    assert refusal(lambda: viewer.order_instead(incident, "stop", "x")).status == 403
    ghost = IncidentId(RunId(project, "gpt"), 99)
    assert refusal(lambda: ada.order_instead(ghost, "stop", "x")).status == 404
    with live.client() as stranger:
        assert stranger.post(f"{spiking.path}/incidents/1/commands", json={}).status_code == 401
    ada.order(spiking.id, "checkpoint_now", "before anything else")
    assert [order.action for order in orders(spiking)] != []


def test_the_command_line_orders_by_target_and_edits_what_it_approves(
    project: str, spiking: Job, typed: Typed
) -> None:
    name = f"{project}/gpt"
    nowhere = ("run", name, "rollback", "--to", "7", "--reason", "x", "--yes")
    assert "it has step-400, step-300, step-200, step-100" in typed(*nowhere, status=1)
    said = typed("run", name, "rollback", "--to", "200", "--reason", "x", status=1)
    assert "roll back to step 200 (step-200)" in said
    assert "costs: 280 steps" in said
    assert f"in place of {name}#1.1: roll back to step 300" in said
    assert "Nothing was ordered." in said
    edit = ("approve", f"{name}#1", "--to", "200", "--factor", "0.5", "--steps", "50", "--yes")
    assert "--reason" in typed(*edit, status=1)
    said = typed(*edit, "--reason", "the shard began before")
    assert "Changed to:\nroll back to step 200 (step-200), skip batches 399 to 417 (19), " in said
    assert "Approved: roll back to step 200" in said
    [order] = orders(spiking)
    assert order.action == Rollback("step-200", 200, BatchRange(399, 418), 0.5, 50)
    told = typed("show", name)
    assert "(Ada)" in told
    assert "why: the shard began before" in told
    assert "has not reported yet" in typed(
        *edit[:1], f"{name}#1.1", *edit[2:], "--reason", "x", status=5
    )


HIDDEN = re.compile(r'type="hidden" name="(\w+)" value="([^"]*)"')


def test_the_page_lists_what_is_proposed_then_targets_from_before_the_onset(
    live: Live, project: str, spiking: Job
) -> None:
    """The newest first among equals, and last what was saved amid the damage."""
    spiking.send(spiking.steps(10, 1.0), spiking.saved())
    with live.browser(live.operator(project)) as page:
        shown = page.get(f"/act/{project}/gpt?verb=rollback").text
    assert re.findall(r"<b>Step ([\d,]+)</b>", shown) == ["300", "200", "100", "400", "490"]


def test_the_page_shows_what_would_be_done_and_does_it_once(
    live: Live, project: str, spiking: Job
) -> None:
    ada, bob = client_of(live, project), client_of(live, project, "Bob")
    place = f"/act/{project}/gpt"
    with live.browser(live.operator(project)) as page:
        first = page.get(place).text
        assert "step-200 · disk" in first
        assert len(first) < 40_000
        assert f'href="{place}?' in page.get(f"/incident/{project}/gpt/1").text or place in first
        for asked in (
            "target=step-9",
            "target=<script>",
            "target=step-200&skip_first=x",
            "target=step-200&lr_factor=9&lr_steps=9",
            "target=step-200&skip_last=300",
        ):
            answer = page.get(f"{place}?verb=rollback&review=true&{asked}")
            assert (answer.status_code, "<script>" in answer.text) == (422, False), asked
        shown = page.get(f"{place}?verb=rollback&target=step-200&review=true").text
        assert "Roll back to step 200 (step-200)" in shown
        assert "It takes the place of what is proposed" in shown
        form = dict(HIDDEN.findall(shown))
        for wrong, status in (
            ({"key": "0" * 64}, 403), ({"reason": " "}, 422), ({"expect": "gold"}, 422),
            ({"revision": "9"}, 409), ({"verb": "explode"}, 422), ({"target": "step-9"}, 422),
        ):  # fmt: skip
            sent = {**form, "reason": "older", **wrong}
            assert page.post(place, data=sent).status_code == status, wrong
        bob.order_instead(
            spiking.incident_id, "rollback", "first", target="step-100",
            proposal=spiking.offer()[0], revision=spiking.offer()[1],
        )  # fmt: skip
        late = page.post(place, data={**form, "reason": "older"})
        assert (late.status_code, "approved" in late.text) == (409, True)
        assert 'value="older"' in late.text
        again = page.get(f"{place}?verb=rollback&target=step-100&review=true").text
        assert "This was ordered already: " in again
        assert "This was ordered already" not in shown
    assert [c["proposed_by"] for c in ada.incident(spiking.incident_id)["commands"]] == [
        None, "Bob"
    ]  # fmt: skip


def judged(ada: Client, run: RunId) -> dict[str, Any]:
    """The newest command, once it is."""

    def found() -> dict[str, Any] | None:
        newest: dict[str, Any] = dict(next(iter(ada.run_commands(run))))
        return newest if newest["state"] == "judged" else None

    command: dict[str, Any] = await_that(found)
    return command
