"""A policy tried on a run's stored history, before it is put in force."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from spikeguard_client import ApiError, Client
from spikeguard_protocol import Role, RunId, SegmentId, SegmentPoint, SegmentReason, SegmentStarted
from spikeguard_server.access.grants import Grant
from spikeguard_server.detectors import SHIPPED
from spikeguard_server.domain.policy.settings import LIMITS
from tests.server.face.conftest import Job

if TYPE_CHECKING:
    from tests.server.face.conftest import Live

BLIND = {"detection": {"detector": "zscore", "threshold": 50.0}}


@pytest.fixture(scope="module")
def viewer(live: Live) -> Client:
    return Client(live.url, live.tokens[Role.VIEWER], timeout_s=60)


@pytest.fixture(scope="module")
def undone(live: Live) -> Job:
    """A run whose spike a rollback undid: the rows of it stand on a branch of their own."""
    job = Job(live, "previewed").start()
    for _ in range(2):
        job.send(job.steps(100), job.saved())
    job.train(40, excess=3.0)
    back = SegmentPoint(SegmentId(job.attempt, 0), 190)
    job.send(SegmentStarted(1, SegmentReason.ROLLBACK, back, 190))
    job.step = 190
    job.send(_of_segment(job, 60))
    return job


def _of_segment(job: Job, steps: int) -> Any:
    return replace(job.steps(steps), segment=1)


def test_a_preview_says_what_would_have_been_found_and_proposed_and_writes_nothing(
    undone: Job, viewer: Client
) -> None:
    run = RunId("default", undone.run)
    before = [entry["number"] for entry in viewer.audit(run)]
    preview = viewer.preview_policy(run, BLIND)
    assert (preview["now"]["found"], preview["then"]["found"]) == (1, 0)
    [spike] = preview["now"]["incidents"]
    assert abs(spike["onset_step"] - 201) <= 1
    assert (spike["branch"], spike["closed_step"]) == (0, None)  # its branch ends with it open
    assert (preview["whole"], preview["samples"], preview["last_step"]) == (True, 300, 250)
    assert [entry["number"] for entry in viewer.audit(run)] == before
    assert viewer.run_policy(run)["scope"] == "project"


def test_patience_is_seen_in_what_would_have_been_proposed(undone: Job, viewer: Client) -> None:
    run = RunId("default", undone.run)
    patient = viewer.preview_policy(run, {"patience_steps": 1000})
    [now], [then] = (patient[when]["incidents"] for when in ("now", "then"))
    assert then["onset_step"] == now["onset_step"]
    assert "rollback" in {one["verb"] for one in now["proposals"]}
    assert {one["verb"] for one in then["proposals"]} == {"watch"}
    assert (patient["now"]["proposed"], patient["then"]["proposed"]) == (1, 0)


def test_what_a_policy_may_not_hold_is_refused_with_its_field(undone: Job, viewer: Client) -> None:
    run = RunId("default", undone.run)
    for policy, field in (
        ({"patience_steps": -1}, "patience_steps"),
        ({"detection": {"threshold": 1e9}}, "detection.threshold"),
        ({"nonsense": 1}, "nonsense"),
    ):
        with pytest.raises(ApiError) as refused:
            viewer.preview_policy(run, policy)
        assert refused.value.status == 422
        assert refused.value.error["field"] == field
    with pytest.raises(ApiError) as refused:
        viewer.preview_policy(run, {}, steps=20_001)
    assert refused.value.error["field"] == "steps"


def test_every_setting_is_told_with_unit_default_range_and_meaning(viewer: Client) -> None:
    told = viewer.policy_settings()
    numbers = {one["name"]: one for one in told["policy"] if one["name"] in LIMITS}
    assert set(numbers) == set(LIMITS) - {"version"}
    patience = numbers["patience_steps"]
    assert (patience["default"], patience["least"], patience["unit"]) == (20, 0, "steps")
    assert all(one["meaning"] for one in [*told["policy"], *told["approval"]])
    assert {one["name"] for one in told["detectors"]} >= set(SHIPPED)


def test_people_who_ask_for_many_previews_at_once_keep_nobody_else_waiting(
    live: Live, undone: Job
) -> None:
    """Each token has one under way; whoever waits for another's holds no thread."""
    two = [live.token(Grant(Role.VIEWER, person=f"Reader {name}")) for name in ("One", "Two")]

    def ask(token: str) -> int:
        with live.bearing(token) as calls:
            return calls.post(f"{undone.path}/policy/preview", json={"policy": BLIND}).status_code

    with ThreadPoolExecutor(80) as pool, live.client(Role.VIEWER) as other:
        previews = [pool.submit(ask, token) for token in two * 40]
        time.sleep(0.2)
        began = time.monotonic()
        assert other.get("/v1/runs").status_code == 200
        waited_s = time.monotonic() - began
        answers = Counter(each.result() for each in previews)
    assert set(answers) == {200, 429}
    assert answers[200] >= 2
    assert waited_s < 5.0
