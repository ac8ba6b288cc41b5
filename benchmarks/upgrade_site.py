"""What an upgrade is made of: replicas and jobs of several releases, and a person who approves.

Law: every process is started and ended here, by its own id; replicas and agents are started as
operators and users start them, by their release's own commands.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.faults_site import free_port
from benchmarks.ingest_servers import HOST
from benchmarks.upgrade_releases import ROOT, Release
from spikeguard_protocol import CommandId
from spikeguard_protocol.paths import command_path

READY_S = 90.0
LOOK_S = 0.1


@dataclass
class Site:
    """One database, the folder of everything, and the processes on it."""

    place: Path
    database_url: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, command: list[str], log: str, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process of a release, with nothing of ours in its way."""
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PYTHON", "SPIKEGUARD", "DATA"))
        }
        given = {**kept, "OMP_NUM_THREADS": "1", **environment}
        with (self.place / f"{log}.log").open("ab") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=given, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.running.append(process)
        return process

    def ask(self, release: Release, *words: str) -> str:
        """What a command of `release` says on this database."""
        given = {**os.environ, "DATABASE_URL": self.database_url}
        command = release.command(*words)
        done = subprocess.run(command, env=given, cwd="/", capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr[-2000:]}")
        return done.stdout.strip()

    def end(self) -> None:
        """End what is still there."""
        for process in reversed(self.running):
            if process.poll() is None:
                process.kill()
                process.wait()


@dataclass
class Replica:
    """One place where a server answers, whichever release it is of."""

    site: Site
    name: str
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.port}"

    def start(self, release: Release) -> float:
        """Start a server of `release`; seconds until it was ready."""
        began = time.monotonic()
        given = {"DATABASE_URL": self.site.database_url, "SPIKEGUARD_TICK_S": "0.5"}
        command = release.command("serve", "--port", str(self.port))
        self.process = self.site.start(command, f"{self.name}-{release.name}", given)
        wait_for(lambda: self.status("/readyz") == 200, f"{self.name} of {release.name}")
        return time.monotonic() - began

    def replace(self, release: Release) -> float:
        """End the server in order and start one of `release`; seconds without one."""
        began = time.monotonic()
        assert self.process is not None
        self.process.terminate()
        self.process.wait(READY_S)
        self.start(release)
        return time.monotonic() - began

    def status(self, path: str) -> int:
        """What it answers; 0 for nothing."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


def wait_for(ready: Callable[[], object], what: str, limit_s: float = READY_S) -> None:
    """Return once `ready()` holds."""
    until = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > until:
            raise RuntimeError(f"{what}: not within {limit_s:g} s")
        time.sleep(LOOK_S)


@dataclass
class Jobs:
    """Jobs of one release's agent in one process of its own."""

    site: Site
    release: Release
    plan: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None

    @property
    def result(self) -> Path:
        """Where they write what happened."""
        return self.site.place / f"jobs-{self.plan['name']}.json"

    def start(self) -> Jobs:
        """Let them train."""
        file = self.site.place / f"plan-{self.plan['name']}.json"
        file.write_text(json.dumps({**self.plan, "result": str(self.result)}))
        command = [str(self.release.python), "-m", "benchmarks.upgrade_jobs", str(file)]
        given = {"PYTHONPATH": str(ROOT)}
        self.process = self.site.start(command, f"jobs-{self.plan['name']}", given)
        return self

    def finished(self, limit_s: float = 240.0) -> list[dict[str, Any]]:
        """What happened to each."""
        assert self.process is not None
        if self.process.wait(limit_s) != 0:
            log = self.site.place / f"jobs-{self.plan['name']}.log"
            raise RuntimeError(f"the jobs ended with an error:\n{log.read_text()[-2000:]}")
        found: list[dict[str, Any]] = json.loads(self.result.read_text())
        return found


@dataclass
class Agent:
    """A run of the reference trainer, guarded by a release's real agent."""

    site: Site
    name: str
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self, release: Release, server: str, token: str, *options: str) -> Agent:
        """Train, or go on from the checkpoint that the last start left."""
        self.starts += 1
        out = self.site.place / "runs" / self.name
        out.mkdir(parents=True, exist_ok=True)
        command = [
            str(release.python), "-m", "spikeguard_trainer", "--preset", "tiny", "--cpu", "--quiet",
            "--out", str(out), "--run", self.name, "--log", str(self._log()), *options,
        ]  # fmt: skip
        given = {"SPIKEGUARD_SERVER": server, "SPIKEGUARD_TOKEN": token}
        self.process = self.site.start(command, f"agent-{self.name}", given)
        return self

    def _log(self) -> Path:
        return self.site.place / f"steps-{self.name}-{self.starts}.csv"

    def steps(self) -> list[int]:
        """The steps of this start as they were trained; after a rollback numbers repeat."""
        with suppress(FileNotFoundError), self._log().open(newline="") as file:
            return [int(row["step"]) for row in csv.DictReader(file) if row["loss"]]
        return []

    def wait_for_step(self, step: int) -> None:
        """Return once it has trained that far."""
        wait_for(lambda: max(self.steps(), default=0) >= step, f"step {step} of {self.name}", 180.0)

    def kill(self) -> list[int]:
        """SIGKILL, in the midst of training; what was trained until then."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        return self.steps()

    def finished(self, limit_s: float = 240.0) -> list[int]:
        """What was trained, at its end."""
        assert self.process is not None
        if self.process.wait(limit_s) != 0:
            log = self.site.place / f"agent-{self.name}.log"
            raise RuntimeError(f"{self.name} ended with an error:\n{log.read_text()[-2000:]}")
        return self.steps()


class Person(Thread):
    """Approves every rollback as soon as it is proposed, at whichever replica answers.

    The jobs of `held` are stopped first, so that what is approved for them waits undelivered.
    """

    def __init__(self, replicas: list[Replica], token: str, signs: Path, held: set[str]) -> None:
        super().__init__(daemon=True)
        self.approved: dict[str, str] = {}  # run -> command
        self.refused: list[str] = []
        self._replicas, self._token = replicas, token
        self._signs, self._held = signs, held
        self._over = Event()

    def run(self) -> None:
        """Look, and decide, until told to stop."""
        while not self._over.wait(0.3):
            found = self._call("GET", "/v1/incidents?state=open,recovering&limit=200")
            for incident in (found or {}).get("items", []):
                proposal = incident["proposal"]
                if proposal is not None and proposal["verb"] == "rollback":
                    self._decide(incident["run"], proposal)

    def stop(self) -> None:
        """Approve nothing any more."""
        self._over.set()
        self.join()

    def _decide(self, run: str, proposal: dict[str, Any]) -> None:
        name = run.rpartition("/")[2]
        if name in self._held and not self._stopped(name):
            return
        path = f"{command_path(CommandId.parse(proposal['id']))}/approve"
        if self._call("POST", path, {"revision": proposal["revision"]}) is not None:
            self.approved[name] = proposal["id"]

    def _stopped(self, name: str) -> bool:
        """Whether the job stands still; from now on it is to. What it proposed may be new then."""
        (self._signs / f"hold-{name}").touch()
        if not (self._signs / f"held-{name}").exists():
            return False
        self._held.discard(name)
        return True

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        for replica in self._replicas:
            data = None if body is None else json.dumps(body).encode()
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
            request = urllib.request.Request(replica.url + path, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=15) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                self.refused.append(f"{method} {path}: {error.code}")
                if error.code < 500:
                    return None
            except (OSError, ValueError):
                continue
        return None
