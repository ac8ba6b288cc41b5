"""Weights that stand still, or are not the same on all ranks, while the loss looks calm."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from spikeguard_protocol import AttemptEnded, Role

if TYPE_CHECKING:
    from tests.server.face.conftest import Job


def postmortem(job: Job) -> str:
    """In Markdown, once it is written."""
    deadline = time.monotonic() + 20
    while not job.incident()["has_postmortem"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
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
    assert "stuck run at step 121" in told
    assert "update after update was dropped" in told


def test_without_a_way_back_a_stuck_run_is_to_be_stopped(job: Job) -> None:
    job.train(120)
    stuck = drop(job, 10)
    assert stuck["proposal"]["verb"] == "stop"
    assert "stuck and there is no way back" in stuck["proposal"]["reason"]


def test_ranks_that_have_parted_are_a_precursor_and_a_likely_cause(job: Job) -> None:
    job.send(job.steps(200), job.saved())
    job.send(job.steps(1, replicas_apart=0.0))
    job.train(90)
    job.send(job.steps(1, replicas_apart=1.0, replica_apart=3.0))
    job.train(8)
    job.train(30, excess=3.0)
    incident = job.incident()
    assert incident["evidence"]["first_moves"]["loss"] == 301
    warned = incident["evidence"]["precursors"]
    assert {"step": 292, "signal": "replicas_apart", "value": 1.0, "z": "inf"} in warned
    assert incident["causes"][0]["cause"] == "weight_corruption"
    assert "(rank 3) did not hold the weights" in " ".join(incident["causes"][0]["reasons"])
    job.send(AttemptEnded("finished"))
    assert "(rank 3) did not hold the weights" in postmortem(job)
