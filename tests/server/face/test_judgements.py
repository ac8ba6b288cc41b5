"""What is said of a command that was carried out depends on what followed it, not on who waited."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import httpx

from spikeguard_protocol import (
    CommandResult,
    ResultState,
    Role,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
)
from tests.agent.wire import await_that
from tests.server.face.conftest import Job
from tests.server.face.test_pages import log_in


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


def post_mortem(job: Job, client: httpx.Client) -> str:
    """The Markdown of the newest incident's, once it is written."""
    job.reported()
    number = job.incident()["number"]
    answer = client.get(f"{job.path}/incidents/{number}/postmortem", params={"format": "md"})
    assert answer.status_code == 200, answer.text
    return answer.text


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
    with job.live.client(Role.VIEWER) as viewer:
        report = post_mortem(job, viewer)
    outcome = report.split("## Outcome")[1].split("## Cost")[0]
    assert f"({done['cost']['steps']} steps): {done['effect']}" in outcome
    with job.live.client() as ada:
        log_in(ada, job.live.tokens[Role.OPERATOR], "Ada")
        page = unescape(ada.get(f"/incident/default/{job.run}/1").text)
    assert done["effect"][1:] in page


def test_a_proposal_whose_spike_healed_is_withdrawn_and_blames_nobody(job: Job) -> None:
    """The page, the interface and the post-mortem say it in the same words."""
    job.spike()
    command = job.incident()["proposal"]
    job.train(150)
    (ended,) = [c for c in job.incident()["commands"] if c["id"] == command["id"]]
    assert ended["state"] == "withdrawn_healed"
    with job.live.client() as ada:
        log_in(ada, job.live.tokens[Role.OPERATOR], "Ada")
        page = ada.get(f"/confirm/default/{job.run}/1/{command['number']}")
    with job.live.client(Role.VIEWER) as viewer:
        report = post_mortem(job, viewer)
    told = "ithdrawn: it was healing"
    for text in (unescape(page.text), report):
        assert told in text
        assert "obody answered" not in text
        assert "who is paged" not in text
