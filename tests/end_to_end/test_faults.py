"""The whole story of a fault with real processes: trained, seen, named, mended, written up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import truth_site
from benchmarks.truth_cases import CASES
from benchmarks.truth_rows import judge
from benchmarks.truth_site import QUICK, Inbox, Site
from spikeguard_trainer.stage.service import Service
from tests.end_to_end import held_job
from tests.end_to_end.forked import ForkingChildren

LENGTHS = replace(QUICK, batch=16, fault=130, steps=400)
RECORDED = {"SPIKEGUARD_FLIGHT_RECORDER": "32"}
ON_ITS_WAY = ("delivered", "applied", "judged")


@pytest.fixture(scope="module")
def site(folder: Path, service: Service) -> Iterator[Site]:
    """Where `benchmarks.truth` trains a run and keeps all that can be read of it."""
    children, place = ForkingChildren(), folder / "truth"
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truth_site, "JOB", held_job.__name__)
        yield Site(place, service, Inbox(), children, LENGTHS)
    children.end()


@pytest.fixture(scope="module")
def twin(site: Site) -> Iterator[Future[list[dict[str, float]]]]:
    """The steps of the same seed without a fault and without a server.

    Trained beside the first of the others; only who asks waits for it.
    """
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(site.twin, 0)


@pytest.fixture
def twins_loss(site: Site, twin: Future[list[dict[str, float]]]) -> Callable[[], float]:
    """Validation loss of the twin, nats."""

    def loss() -> float:
        twin.result()
        summary = json.loads((site.directory / "twin-0" / "summary.json").read_text())
        return float(summary["validation_loss"])

    return loss


class Person(truth_site._Person):
    """Decides at the second look, and lets the job go on once it has the order."""

    def _look(self) -> list[dict[str, Any]]:
        incidents = super()._look()
        states = [command["state"] for each in incidents for command in each["commands"]]
        if any(state in ON_ITS_WAY for state in states):
            (self.job.directory / held_job.DECIDED).touch()
        return incidents


def _done(incidents: list[dict[str, Any]], verb: str) -> list[dict[str, Any]]:
    return [
        command
        for incident in incidents
        for command in incident["commands"]
        if command["verb"] == verb and command["state"] in ("applied", "judged")
    ]


def test_a_raised_learning_rate_is_rolled_back_and_what_is_said_of_it_is_true(
    site: Site,
    twin: Future[list[dict[str, float]]],
    twins_loss: Callable[[], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One run of `benchmarks.truth`, shortened: 40 times too high for 10 steps.

    Past it the run goes on at a low rate, here for a tenth of its steps. `benchmarks.truth` has
    every fault, and more seeds.
    """
    for name, value in RECORDED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(truth_site, "LOOK_EVERY_S", 0.5)
    monkeypatch.setattr(truth_site, "READING_STEPS", 0)
    monkeypatch.setattr(truth_site, "REPORT_LIMIT_S", 120.0)
    monkeypatch.setattr(truth_site, "_Person", Person)
    case = next(case for case in CASES if case.name == "lr-bump")
    record = site.row(case, 0, 0)
    row = judge(record, twin.result())
    assert row.incidents == row.named == row.outcomes_right == 1, row
    assert row.proposed
    assert row.outcomes == ["recovered"]
    wrong = row.wrong_cause + row.wrong_remedy + row.wrong_outcome + row.missing_followups
    assert not wrong
    assert not row.false
    _check_recovered(site.service, record.incidents)
    summary = json.loads((site.directory / "lr-bump-s0-d0" / "summary.json").read_text())
    assert (summary["steps"], summary["rollbacks"]) == (LENGTHS.steps, 1)
    assert summary["validation_loss"] == pytest.approx(twins_loss(), rel=0.02)


def _check_recovered(service: Service, incidents: list[dict[str, Any]]) -> None:
    [incident] = incidents
    assert incident["kind"] in ("lingering", "divergent")
    assert incident["outcome"] == "recovered"
    assert 0 <= incident["onset_step"] - LENGTHS.fault <= 4
    assert incident["detected_step"] - incident["onset_step"] <= 2
    [rollback] = _done(incidents, "rollback")
    assert rollback["arguments"]["step"] < LENGTHS.fault
    assert rollback["arguments"]["skip"] is None, "the data is innocent of this fault"
    _check_postmortem(service, incident, rollback)


def _check_postmortem(service: Service, incident: dict[str, Any], done: dict[str, Any]) -> None:
    told = json.loads(service.postmortem(incident, "json"))
    [command] = [c for c in told["commands"] if c["id"] == done["id"]]
    assert (command["state"], command["decided_by"]) == ("judged", done["decided_by"])
    assert command["applied_step"] == done["applied_step"] > incident["onset_step"]
    assert told["incident"]["outcome"] == "recovered"
    assert told["symptoms"]["peak_loss"] > told["symptoms"]["pre_loss"]
    assert told["cost"]["steps"] >= done["applied_step"] - done["arguments"]["step"]
    assert b"<svg" in service.postmortem(incident, "html")
    assert done["id"] in service.postmortem(incident, "md").decode().replace("\\#", "#")
