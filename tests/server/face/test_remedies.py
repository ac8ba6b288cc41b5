"""The cause decides the remedy: in the proposal, on the page that decides, and the next morning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spikeguard_protocol import AttemptEnded, Role
from tests.server.face.test_pages import log_in
from tests.server.face.test_standing_still import postmortem

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live

CALM = {"lr": 3e-3, "update_norm": 30.0, "param_norm": 50.0}


@pytest.fixture
def raised(job: Job) -> dict[str, Any]:
    """The learning rate rises 40-fold for ten steps, and the loss stays up from the second on."""
    for _ in range(4):
        job.send(job.steps(100, **CALM), job.saved())
    job.train(1, **CALM | {"lr": 0.12})
    for _ in range(9):
        job.train(1, excess=3.0, **CALM | {"lr": 0.12})
    for _ in range(10):
        job.train(40, excess=3.0, **CALM)
        incident = job.incident()
        if incident["proposal"] is not None and incident["proposal"]["verb"] == "rollback":
            return incident
    raise AssertionError(f"nothing was proposed: {incident}")


def test_a_raised_learning_rate_skips_no_batch_and_is_lowered_past_its_steps(
    job: Job, live: Live, raised: dict[str, Any]
) -> None:
    proposal = raised["proposal"]
    arguments = proposal["arguments"]
    assert (arguments["step"], arguments["skip"]) == (300, None)
    assert arguments["lr_factor"] == 0.05
    assert 300 + 0.9 * arguments["lr_steps"] > 410
    assert "learning rate too high: the learning rate rose 40-fold" in proposal["reason"]
    assert "No batch is skipped" in proposal["reason"]
    assert "few batches" not in proposal["reason"]
    assert raised["remedy"]["diagnosis"] == "lr_too_high"
    assert [check for check in proposal["checks"] if "schedule" in check]
    with live.client() as browser:
        log_in(browser, live.tokens[Role.OPERATOR], "Ada")
        page = browser.get(f"/confirm/{job.project}/{job.run}/1/{proposal['number']}").text
    assert "Check first" in page
    assert "Compare the learning rate with the schedule" in page
    job.send(AttemptEnded("finished"))
    told = postmortem(job)
    follow_ups = told[told.index("## Follow-ups") :]
    assert "raised 40-fold from step 401 to 410" in follow_ups
    assert "Look at the data" not in follow_ups


def test_the_policy_can_switch_a_remedy_off(job: Job, live: Live) -> None:
    with live.client(Role.ADMIN) as admin:
        path = f"/v1/runs/{job.project}/{job.run}/policy"
        job.train(1, **CALM)
        policy = {"remedies": {"lr_too_high": {"use": False}}}
        answer = admin.put(path, json={"version": 0, "policy": policy})
        assert answer.status_code == 200, answer.text
        assert answer.json()["policy"]["remedies"] == policy["remedies"]
        wrong = {"version": 1, "policy": {"remedies": {"gremlins": {}}}}
        refused = admin.put(path, json=wrong)
        assert refused.status_code == 422
        assert "remedies.gremlins" in refused.text
