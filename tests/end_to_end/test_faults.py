"""The whole story with real processes: the first hour as its page says, and a fault that is mended.

One real service serves both.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import truth_site
from benchmarks.truth_cases import CASES
from benchmarks.truth_rows import judge
from benchmarks.truth_site import QUICK, Inbox, Site
from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Service, awaiting
from tests.end_to_end import held_job
from tests.programs import SPIKEGUARD, start_module

PAGE = Path(__file__).parents[2] / "docs/first-hour.md"
WAIT_S = 120.0
PACE = "sleep(int(sys.argv[1]) / 150_000)"  # nobody follows the shorter run
MODULES = ("spikeguard_trainer", held_job.__name__, SPIKEGUARD)
LENGTHS = replace(QUICK, batch=16, fault=130, steps=400)
RECORDED = {"SPIKEGUARD_FLIGHT_RECORDER": "32"}
ON_ITS_WAY = ("delivered", "applied", "judged")


class ForkingChildren(Children):
    """Starts `python -m MODULE` of a training job or a server by a fork from a process that has
    imported torch and the server; everything else as it does."""

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        _, option, module, *arguments = command
        if option != "-m" or module not in MODULES:
            return super().start(command, environment, log)
        given = {**os.environ, **environment}
        child = start_module(module, *arguments, output=log, environment=given)
        self._running.append(child)
        return child


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A short path, because a Postgres socket's may not be long."""
    place = Path(tempfile.mkdtemp(prefix="sg-e2e-"))
    place.chmod(0o711)  # run as root, Postgres has an account of its own that must pass
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """`spikeguard up` without its dashboard; a worker that has other files then has its core."""
    children = ForkingChildren()
    try:
        yield Service.start(children, folder / "service", "--no-dashboard")
    finally:
        children.end()


@pytest.fixture
def children() -> Iterator[Children]:
    """Ends whatever a test started."""
    children = ForkingChildren()
    yield children
    children.end()


def typed(words: str, folder: Path, environment: Mapping[str, str]) -> str:
    """What bash prints; the page's own shell says nothing of failures."""
    done = subprocess.run(
        ["bash", "-euc", words], cwd=folder, env=environment, text=True, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}"
    return done.stdout


def _rollback_waits(incident: dict[str, Any]) -> bool:
    proposal = awaiting(incident)
    return proposal is not None and proposal["verb"] == "rollback"


def test_the_first_hour_goes_as_the_page_says(
    service: Service, tmp_path: Path, children: Children
) -> None:
    """Every block of it, typed in its order."""
    text = PAGE.read_text()
    train, guarded = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    log, loop, up, job, approval, end = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.DOTALL)
    (tmp_path / "train.py").write_text(train)
    (tmp_path / "guarded.py").write_text(guarded.replace("sleep(0.05)", PACE))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    alone = {"PATH": path, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

    said = typed(log, tmp_path, alone)
    assert "divergent" in said
    assert "began at step 301 in loss, seen 1 step later" in said
    assert "cause: learning rate too high" in said

    said = typed(loop, tmp_path, alone)
    assert "spike #1 of this attempt, since step 301" in said
    assert "cause: learning rate too high" in said
    assert "would propose: roll back to step" in said

    assert up == "spikeguard up\n"
    place = service.place
    served = {**alone, "SPIKEGUARD_CREDENTIALS": place.credentials}
    exports, ours = job.partition("rm -r out")[::2]
    assert [line.partition("=")[0] for line in exports.splitlines()] == [
        "export SPIKEGUARD_SERVER", "export SPIKEGUARD_TOKEN_FILE",
    ]  # fmt: skip
    its = {"SPIKEGUARD_SERVER": place.server, "SPIKEGUARD_TOKEN_FILE": place.agent_token_file}
    command = f"cd {tmp_path} && rm -r out{ours.removesuffix(' &' + chr(10))}"
    children.start(["bash", "-c", command], {**served, **its}, tmp_path / "job.log")

    inbox, show, approve = approval.splitlines()
    until = time.monotonic() + WAIT_S
    while not [i for i in service.incidents("first-hour") if _rollback_waits(i)]:
        assert time.monotonic() < until, (tmp_path / "job.log").read_text()
        time.sleep(0.5)
    said = typed(inbox, tmp_path, served)
    assert "rollback" in said or "roll back" in said
    assert "first-hour#1" in typed(show, tmp_path, served)
    typed(f"until {approve}; do sleep 0.5; done", tmp_path, served)  # revised since the look: again

    until = time.monotonic() + WAIT_S
    while not (closed := service.incidents("first-hour")[0])["has_postmortem"]:
        assert time.monotonic() < until, (tmp_path / "job.log").read_text()
        time.sleep(1)
    assert (closed["state"], closed["outcome"]) == ("closed", "recovered")
    typed(end, tmp_path, served)
    assert "first-hour#1" in (tmp_path / "postmortem.html").read_text()


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
    assert told["incident"]["peak_loss"] > told["incident"]["pre_loss"]
    assert told["cost"]["steps"] >= done["applied_step"] - done["arguments"]["step"]
    assert b"<svg" in service.postmortem(incident, "html")
    assert done["id"] in service.postmortem(incident, "md").decode().replace("\\#", "#")
