"""What is said of a command, or of an earlier one, depends on what followed it, and on no wait."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html import unescape
from typing import Any

from spikeguard_protocol import (
    AttemptEnded,
    CommandResult,
    IncidentId,
    ResultState,
    Role,
    RunId,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
)
from tests.agent.wire import await_that
from tests.server.face.conftest import Job, Live, Typed, client_of


def approve(job: Job) -> dict[str, Any]:
    """Say yes to what is proposed now; answers with the command."""
    command: dict[str, Any] = job.incident()["proposal"]
    with job.live.person("Ada") as ada:
        body = {"revision": command["revision"]}
        answer = ada.post(f"{job.command_path(command)}/approve", json=body)
    assert answer.status_code == 200, answer.text
    return command


def roll_back(job: Job, command: dict[str, Any], to: int) -> None:
    """Carry `command` out where the job stands, and train on calmly from its target to `to`."""
    job.train(1, excess=3.0)
    target, here = command["arguments"]["step"], job.step
    parent = SegmentPoint(SegmentId(job.attempt, 0), target)
    job.send(
        SegmentStarted(1, SegmentReason.ROLLBACK, parent, target, command["id"]),
        CommandResult(command["id"], ResultState.APPLIED, "rolled back", here),
    )
    job.step = target
    job.send(replace(job.steps(to - target), segment=1))


def postmortem(job: Job) -> str:
    """The Markdown of its newest incident's, once it is written."""
    path = f"{job.path}/incidents/{job.reported()['number']}/postmortem"
    with job.live.client(Role.VIEWER) as client:
        return client.get(path, params={"format": "md"}).text


def test_every_view_says_what_a_rollback_bought_on_the_batches_of_both_branches(job: Job) -> None:
    """The undone branch stood 3 nats above; a trend would say so less surely."""
    job.spike()
    command = approve(job)
    roll_back(job, command, 600)

    def judged() -> Any:
        (done,) = [c for c in job.incident()["commands"] if c["id"] == command["id"]]
        return done["effect"] and done

    done = await_that(judged)
    found = re.fullmatch(
        r"the loss lies ([\d.]+) ± ([\d.]+) nats below that of the branch that was undone, on "
        r"\d+ batches that both trained on",
        done["effect"],
    )
    assert found is not None, done["effect"]
    bought, error = map(float, found.groups())
    assert abs(bought - 3.0) <= error < 0.1
    report = postmortem(job)
    outcome = report.split("## Outcome")[1].split("## Cost")[0]
    assert f"({done['cost']['steps']} steps undone): {done['effect']}" in outcome
    with job.live.browser(job.live.operator()) as ada:
        page = unescape(ada.get(f"/incident/default/{job.run}/1").text)
    assert done["effect"][1:] in page


def test_a_proposal_whose_spike_healed_is_withdrawn_and_blames_nobody(job: Job) -> None:
    """The page, the interface and the post-mortem say it in the same words."""
    job.spike()
    command = job.incident()["proposal"]
    job.train(150)
    (ended,) = [c for c in job.incident()["commands"] if c["id"] == command["id"]]
    assert ended["state"] == "withdrawn_healed"
    with job.live.browser(job.live.operator()) as ada:
        page = ada.get(f"/confirm/default/{job.run}/1/{command['number']}")
    report = postmortem(job)
    told = "ithdrawn: it was healing"
    for text in (unescape(page.text), report):
        assert told in text
        assert "obody answered" not in text
        assert "who is paged" not in text


def drop(job: Job, steps: int) -> dict[str, Any]:
    """So many updates, each not finite and kept out; the incident then."""
    job.send(job.steps(steps, grad_norm=math.nan, update_dropped=1.0))
    return job.incident()


def test_ten_dropped_updates_in_a_row_are_stuck_and_a_rollback_is_proposed(
    job: Job,
) -> None:
    job.send(job.steps(100), job.saved())
    job.send(job.steps(20))
    early = drop(job, 9)
    assert (early["kind"], early["stuck"], early["proposal"]) == ("recoverable", False, None)
    stuck = drop(job, 1)
    assert (stuck["kind"], stuck["stuck"], stuck["onset_step"]) == ("divergent", True, 121)
    assert stuck["reason"].startswith("stuck: 10 updates in a row had to be dropped")
    assert stuck["proposal"]["verb"] == "rollback"
    assert "Stuck: 10 updates" in stuck["proposal"]["reason"]
    job.send(AttemptEnded("finished"))
    told = postmortem(job)
    assert "updates dropped at step 121" in told
    assert "Update after update was dropped" in told


def part(job: Job) -> dict[str, Any]:
    """All ranks are equal at step 201, rank 3 has other weights at 292; the incident then."""
    job.send(job.steps(200), job.saved())
    job.send(job.steps(1, replicas_apart=0.0))
    job.train(90)
    job.send(job.steps(1, replicas_apart=1.0, replica_apart=3.0))
    return job.incident()


def test_ranks_that_have_parted_call_somebody_and_are_rolled_back_to_equal_weights(
    job: Job,
) -> None:
    incident = part(job)
    assert (incident["signal"], incident["apart"], incident["onset_step"]) == (
        "replicas_apart", True, 202,
    )  # fmt: skip
    assert (incident["kind"], incident["state"]) == ("divergent", "open")
    assert incident["reason"].endswith("at step 292; all were equal at step 201")
    assert incident["causes"][0]["cause"] == "weight_corruption"
    proposal = incident["proposal"]
    assert (proposal["verb"], proposal["arguments"]["step"]) == ("rollback", 200)
    assert proposal["arguments"].get("skip") is None
    assert "No batch is skipped" in proposal["reason"]
    job.train(30, excess=3.0)
    assert job.incident()["number"] == 1
    job.send(AttemptEnded("finished"))
    told = postmortem(job)
    assert "ranks apart at step 202" in told
    assert "(rank 3) did not hold the weights" in told
    assert "may have been apart for 91 steps" in told


def spike(live: Live, project: str, run: str) -> Job:
    return Job(live, run, project=project).start().spike()


def test_what_was_done_about_earlier_ones_is_told_with_what_it_came_to(
    live: Live, project: str, typed: Typed
) -> None:
    cured, left = spike(live, project, "cured"), spike(live, project, "left")
    assert cured.incident()["precedents"] == []  # the first of its kind
    roll_back(cured, approve(cured), 700)
    assert cured.incident()["outcome"] == "recovered"
    left.send(AttemptEnded("finished"))
    elsewhere = spike(live, f"{project}-b", "other")
    elsewhere.send(AttemptEnded("finished"))
    job, client = spike(live, project, "now"), client_of(live, project)
    id = IncidentId(RunId(project, "now"), 1)
    before = client.incident(id)["precedents"]
    assert {t["verb"]: t["words"] for t in before} == {
        "rollback": "rolled back once: recovered",
        None: "waited once: still open when the run ended",
    }
    with live.browser(live.operator(project)) as page:
        text = unescape(page.get(f"/incident/{project}/now/1").text)
    acting, waiting = text.split("<h3>Act now</h3>")[1].split("<h3>Wait</h3>")
    assert "Before: rolled back once: recovered" in acting
    assert "Before: waited once: still open when the run ended" in waiting
    said = " ".join(typed("show", str(id)).split())
    assert "before rolled back once: recovered" in said
    assert job.incident()["proposal"] is not None
