"""Weights that stand still, or are not the same on all ranks, while the loss looks calm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from spikeguard_protocol import AttemptEnded, Role

if TYPE_CHECKING:
    from tests.server.face.conftest import Job


def postmortem(job: Job) -> str:
    """In Markdown, once it is written."""
    job.reported()
    with job.live.client(Role.VIEWER) as client:
        path = f"{job.path}/incidents/1/postmortem"
        return client.get(path, params={"format": "md"}).text


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
