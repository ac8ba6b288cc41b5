"""Processes killed with SIGKILL in the middle of the story: nothing is lost, nothing comes back."""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from spikeguard_cli.api import Api
from spikeguard_cli.credentials import Credentials
from spikeguard_protocol import Role, RunId
from spikeguard_protocol.paths import run_path
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.cli.embedded_postgres import embedded
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_trainer.stage.job import Job
from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Place, Service, awaiting

FAULT_STEP, STEPS = 150, 290
ASK_EVERY_S = 0.25
SIZE = ("--preset", "tiny", "--batch", "12")
PACE = ("--step-time", "0.05")  # so that a person can act before much more is trained
SEND_S = 0.2  # between two messages: whoever waits for one to arrive waits as long, or longer
BRISK = ("--step-time", "0.03")  # where it may train as far as it likes meanwhile


@dataclass
class Replica:
    """`spikeguard serve` on a fixed port, which can be killed and started again."""

    children: Children
    environment: dict[str, str]
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "spikeguard_cli.main", "serve", "--port", str(self.port)]
        self.process = self.children.start(command, self.environment, self.log)
        _until(lambda: _healthy(self.url), 30, "the server is ready")

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _healthy(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _until(holds: Callable[[], Any], limit_s: float, what: str) -> Any:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(ASK_EVERY_S)
    raise AssertionError(f"not within {limit_s} s: {what}")


@pytest.fixture(scope="module")
def database(folder: Path) -> Iterator[str]:
    with embedded(folder / "crash-pg", durable=True) as url:
        yield url


@pytest.fixture
def replica(database: str, folder: Path, children: Children) -> Replica:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"DATABASE_URL": database, "SPIKEGUARD_PUBLIC_URL": f"http://127.0.0.1:{port}"}
    return Replica(children, environment, port, folder / f"serve-{port}.log")


@pytest.fixture
def site(replica: Replica, database: str, folder: Path) -> Service:
    """The replica as a signed-in person and as a training job see it."""
    replica.start()
    agent, person = folder / f"agent-{replica.port}", folder / f"person-{replica.port}"
    engine = open_engine(Settings(database_url=database))
    with engine.begin() as connection:
        agent.write_text(issue_token(connection, Grant(Role.AGENT), "test")[0])
        ada = Grant(Role.OPERATOR, person="ada")
        person.write_text(issue_token(connection, ada, "test")[0])
    engine.dispose()
    assert replica.process is not None
    place = Place(replica.url, None, str(agent), str(person), "")
    return Service(place, replica.process, Api(Credentials(replica.url, person.read_text())))


def _proposal(site: Service, run: str) -> dict[str, Any] | None:
    for incident in site.incidents(run):
        found = awaiting(incident)
        if found and found["verb"] == "rollback":
            return found
    return None


def _approve_until_applied(site: Service, run: str) -> None:
    _until(lambda: _proposal(site, run), 60, "a rollback is proposed")
    _until(lambda: _approved(site, run), 10, "it is approved")
    _until(lambda: _states(site, run) & {"applied", "judged"}, 30, "the rollback is applied")


def _approved(site: Service, run: str) -> bool:
    proposal = _proposal(site, run)
    return proposal is not None and site.approve(proposal)["state"] == "approved"


def _states(site: Service, run: str) -> set[str]:
    return {c["state"] for i in site.incidents(run) for c in i["commands"]
            if c["verb"] == "rollback"}  # fmt: skip


def _stored_steps(site: Service, run: str) -> list[int]:
    series = site.api.get(f"{run_path(RunId.parse(run))}/series", signals="loss", points=20_000)
    return sorted(step for segment in series["segments"] for step in segment["steps"])


def _step_times(site: Service, run: str, steps: range) -> list[float]:
    """Seconds of each step as the agent measured them."""
    path = f"{run_path(RunId.parse(run))}/series"
    series = site.api.get(path, signals="step_time", points=20_000)
    first = series["segments"][0]
    pairs = zip(first["steps"], first["values"]["step_time"], strict=True)
    return [seconds for step, seconds in pairs if step in steps and seconds is not None]


def test_a_server_killed_in_mid_run_loses_nothing_and_the_incident_goes_on(
    replica: Replica, site: Service, children: Children, folder: Path
) -> None:
    """SIGKILL with a proposal open: the job keeps its pace, the same command goes on afterwards.

    The job is longer than any of that takes, and told to end when the story is.
    """
    options = (*SIZE, *BRISK, "--steps", "5000", "--run", "killed-server")
    fault = ("--fault", f"bit_flip@{FAULT_STEP}")
    job = Job.start(children, folder / "killed", site.agent_environment(SEND_S), *options, *fault)
    proposal = _until(lambda: _proposal(site, "killed-server"), 60, "a rollback is proposed")
    replica.kill()
    before = int(job.rows()[-1]["step"])
    _until(lambda: len(job.rows()) >= before + 30, 20, "training goes on without a server")
    replica.start()
    incident = site.incidents("killed-server")[0]
    assert proposal["id"] in [command["id"] for command in incident["commands"]]
    _approve_until_applied(site, "killed-server")
    closed = _until(
        lambda: [i for i in site.incidents("killed-server") if i["has_postmortem"]], 60, "closed"
    )
    assert closed[0]["outcome"] == "recovered"
    job.process.terminate()
    assert job.process.wait(30) == -signal.SIGTERM
    trained = sorted(int(row["step"]) for row in job.rows())
    _until(lambda: len(_stored_steps(site, "killed-server")) >= len(trained), 20, "all is stored")
    _same_but_the_last(_stored_steps(site, "killed-server"), trained)
    calm = _step_times(site, "killed-server", range(50, FAULT_STEP))
    alone = _step_times(site, "killed-server", range(before + 3, before + 28))
    waited_s = statistics.median(alone) - statistics.median(calm)
    assert waited_s < SEND_S / 4, "training waits for the server"


def _same_but_the_last(stored: list[int], trained: list[int]) -> None:
    """The signal may come between the end of a step and its row in the log."""
    extra = Counter(stored) - Counter(trained)
    assert not Counter(trained) - Counter(stored), "a sample was lost"
    assert extra.total() <= 1, "a sample was stored twice"


def test_a_crash_after_a_rollback_brings_neither_the_bad_data_nor_the_bad_checkpoint_back(
    site: Service, children: Children, folder: Path
) -> None:
    """The job is killed right after it went back, before any checkpoint of the new segment."""
    options = (*SIZE, "--steps", str(STEPS), "--run", "killed-job", "--checkpoint-every", "50",
               "--fault", f"bad_batch.repeated@{FAULT_STEP}:60")  # fmt: skip
    place, environment = folder / "killed-job", site.agent_environment(SEND_S)
    job = Job.start(children, place, environment, *options, *PACE)
    _approve_until_applied(site, "killed-job")
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    first = job.rows()
    command = next(c for i in site.incidents("killed-job") for c in i["commands"]
                   if c["verb"] == "rollback" and c["state"] in ("applied", "judged"))  # fmt: skip
    target, (begin, end) = command["arguments"]["step"], command["arguments"]["skip"]
    left_at = command["applied_step"]
    again = Job.start(children, place, environment, *options)
    assert again.process.wait(60) == 0, (place / "trainer.log").read_text()[-2000:]
    rows = again.rows()[len(first) :]
    assert rows, "the restart logged nothing"
    resumed = int(rows[0]["step"]) - 1
    beyond = max(int(row["step"]) for row in first[left_at:]) if len(first) > left_at else target
    assert resumed <= max(target, beyond), "it resumed from an abandoned checkpoint"
    assert not [r for r in rows if begin <= int(r["position"]) < end], "bad data came back"
    assert json.loads((place / "summary.json").read_text())["steps"] == STEPS
