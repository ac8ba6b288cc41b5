"""For each fault the whole story with real processes: trained, seen, named, mended, written up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spikeguard_trainer.stage.job import Job
from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Service

from .conftest import Follow

STEPS = 420
PACE = ["--preset", "tiny", "--steps", str(STEPS), "--step-time", "0.015"]
ROLLED_BACK = (
    "lr_bump@220",
    "weight_scale@220",
    "weight_noise@220",
    "moment_reset@220",
    "gradient_ascent@220",
    "bit_flip@220",
)


def train(children: Children, service: Service, folder: Path, name: str, *faults: str) -> Job:
    options = [*PACE, "--run", name]
    for fault in faults:
        options += ["--fault", fault]
    return Job.start(children, folder / name, service.agent_environment(0.2), *options)


@pytest.fixture(scope="session")
def twin(folder: Path) -> dict[str, Any]:
    """The summary of the same seed without a fault and without a server."""
    children = Children()
    try:
        job = Job.start(children, folder / "twin", {}, *PACE[:4], "--run", "twin")
        assert job.process.wait(90) == 0, (job.directory / "trainer.log").read_text()[-2000:]
        return job.summary()
    finally:
        children.end()


def _verbs(incidents: list[dict[str, Any]]) -> list[str]:
    return [
        c["verb"] for i in incidents for c in i["commands"] if c["state"] in ("applied", "judged")
    ]


@pytest.mark.parametrize("fault", ROLLED_BACK)
def test_a_damaged_run_is_rolled_back_and_ends_where_its_twin_ends(
    fault: str,
    folder: Path,
    service: Service,
    children: Children,
    follow: Follow,
    twin: dict[str, Any],
) -> None:
    name = fault.partition("@")[0].replace("_", "-")
    job = train(children, service, folder, name, fault)
    incidents = follow(service, job, name)
    assert job.process.returncode == 0
    assert incidents, "the spike was not seen"
    assert {i["kind"] for i in incidents} <= {"lingering", "divergent"}
    assert "rollback" in _verbs(incidents)
    assert incidents[-1]["outcome"] == "recovered"
    assert all(abs(i["onset_step"] - 220) <= 25 for i in incidents[:1])
    ended = job.summary()["validation_loss"]
    assert ended == pytest.approx(twin["validation_loss"], rel=0.01)
    told = json.loads(service.postmortem(incidents[0], "json"))
    assert "rollback" in json.dumps(told)


def test_a_bad_batch_heals_and_nothing_is_rolled_back(
    folder: Path, service: Service, children: Children, follow: Follow, twin: dict[str, Any]
) -> None:
    job = train(children, service, folder, "bad-batch", "bad_batch@220")
    incidents = follow(service, job, "bad-batch")
    assert job.process.returncode == 0
    assert [i["kind"] for i in incidents] in (["recoverable"], ["outlier_batch"])
    assert "rollback" not in _verbs(incidents)
    assert job.summary()["validation_loss"] == pytest.approx(twin["validation_loss"], rel=0.02)


def test_a_non_finite_gradient_never_reaches_the_weights_and_nothing_needs_doing(
    folder: Path, service: Service, children: Children, follow: Follow, twin: dict[str, Any]
) -> None:
    job = train(children, service, folder, "nan-grad", "nan_grad@220")
    incidents = follow(service, job, "nan-grad")
    assert job.process.returncode == 0
    assert [(i["dropped"], i["outcome"]) for i in incidents] == [(True, "healed")]
    assert _verbs(incidents) == []
    assert job.summary()["validation_loss"] == pytest.approx(twin["validation_loss"], rel=0.02)
