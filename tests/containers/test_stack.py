"""The whole stack, brought up for real: `SPIKEGUARD_TEST_CONTAINERS=1 pytest tests/containers`.

Minutes long, so it runs only when asked for, and only where there is a Docker engine that has or
can get the base images. Everything it starts is its own and is removed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from spikeguard_cli.api import Api, Refused
from spikeguard_cli.credentials import Credentials
from spikeguard_protocol import CommandId, IncidentId, RunId
from spikeguard_protocol.paths import command_path, incident_path, run_path

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
ASKED = os.environ.get("SPIKEGUARD_TEST_CONTAINERS") == "1"
UP_LIMIT_S = 420.0  # with images to build; about 30 s without
INCIDENT_LIMIT_S = 100.0
FAULT_STEP = 220
T = TypeVar("T")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not ASKED, reason="takes minutes: set SPIKEGUARD_TEST_CONTAINERS=1"),
]


def _run(*command: str, limit_s: float = 60.0, **environment: str) -> str:
    """Standard output of `command`; fails the test with everything it said."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Stack:
    """A running stack of its own name, on ports of its own."""

    project: str
    ports: dict[str, int]

    @property
    def environment(self) -> dict[str, str]:
        ports = {
            "SPIKEGUARD_PORT": "server",
            "SPIKEGUARD_DASHBOARD_PORT": "dashboard",
            "SPIKEGUARD_GRAFANA_PORT": "grafana",
        }
        return {
            "COMPOSE_PROJECT_NAME": self.project,
            "COMPOSE_PROFILES": "demo",
            "SPIKEGUARD_DEMO_PRESET": "tiny",
            "SPIKEGUARD_DEMO_FAULT": f"lr_bump@{FAULT_STEP}:20000:1000",
            "SPIKEGUARD_DEMO_STEP_TIME": "0.05",
            **{variable: str(self.ports[name]) for variable, name in ports.items()},
        }

    def compose(self, *words: str, limit_s: float = 60.0) -> str:
        return _run("docker", "compose", *words, limit_s=limit_s, **self.environment)

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    def inside(self, service: str, address: str) -> Any:
        """What a service that is not published answers in its own container."""
        words = ("wget", "-q", "-O", "-", f"http://127.0.0.1:{address}")
        return json.loads(self.compose("exec", "-T", service, *words))

    def containers(self) -> dict[str, dict[str, Any]]:
        """Service -> what `docker inspect` says of its container."""
        ids = self.compose("ps", "--all", "--quiet").split()
        found = json.loads(_run("docker", "inspect", *ids))
        return {c["Config"]["Labels"]["com.docker.compose.service"]: c for c in found}

    def log(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "40")


def _free_ports(names: tuple[str, ...]) -> dict[str, int]:
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = {n: h.getsockname()[1] for n, h in zip(names, holders, strict=True)}
    for holder in holders:
        holder.close()
    return ports


def _succeeds(*command: str) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=120)
    return done.returncode == 0


def _require_engine_and_images() -> None:
    if not shutil.which("docker") or not _succeeds("docker", "info"):
        pytest.skip("there is no running Docker engine")
    if not _succeeds("docker", "compose", "version"):
        pytest.skip("the Docker engine has no compose plugin")
    for image in sorted({s["image"] for s in SERVICES.values() if ":local" not in s["image"]}):
        if _succeeds("docker", "image", "inspect", image):
            continue
        if not _succeeds("docker", "pull", "--quiet", image):
            pytest.skip(f"the image {image} is not here and can't be pulled")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    _require_engine_and_images()
    ports = _free_ports(("server", "dashboard", "grafana"))
    stack = Stack(f"spikeguard-test-{os.getpid()}", ports)
    try:
        stack.compose("up", "--detach", "--build", "--wait", limit_s=UP_LIMIT_S)
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "5", limit_s=120)


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Api:
    """Somebody who followed the documentation: a token from the server's container, a sign-in."""
    said = stack.compose("exec", "-T", "server", "spikeguard", "token", "create",
                         "--role", "operator", "--unnamed")  # fmt: skip
    token = said.strip()  # the rest of what it says goes to stderr
    anonymous = Api(Credentials(stack.url("server"), token))
    session = anonymous.post("/v1/sessions", {"token": token, "name": "Container Test"})
    return Api(Credentials(stack.url("server"), session["token"]))


def _until(look: Callable[[], T | None], limit_s: float, what: Callable[[], str]) -> T:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if (found := look()) is not None:
            return found
        time.sleep(0.5)
    raise AssertionError(f"not within {limit_s:.0f} s\n{what()}")


def _status(url: str, token: str | None = None) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(url, headers=headers), timeout=120) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_everything_is_healthy_and_the_one_shots_ended_well(stack: Stack) -> None:
    containers = stack.containers()
    assert containers.keys() == SERVICES.keys()
    for name, container in containers.items():
        state = container["State"]
        if name in ("init", "roles", "migrate"):
            assert (state["Status"], state["ExitCode"]) == ("exited", 0), name
        else:
            assert state["Health"]["Status"] == "healthy", name
            assert container["RestartCount"] == 0, name


def test_every_published_port_listens_on_loopback_alone(stack: Stack) -> None:
    for name, container in stack.containers().items():
        bindings = container["HostConfig"]["PortBindings"] or {}
        hosts = {entry["HostIp"] for entries in bindings.values() for entry in entries}
        assert hosts <= {"127.0.0.1"}, name


def test_every_secret_is_readable_by_its_service_alone(
    stack: Stack, make_secrets: ModuleType
) -> None:
    owners = {f"/s/{c.folder}/{c.file}": c.owner for c in make_secrets.COPIES}
    folders = sorted({c.folder for c in make_secrets.COPIES})
    mounts = [f"--volume={stack.project}_secrets-{name}:/s/{name}:ro" for name in folders]
    listing = _run("docker", "run", "--rm", "--network=none", *mounts, SERVICES["init"]["image"],
                   "find", "/s", "-type", "f", "-printf", "%p %U %m\n")  # fmt: skip
    found = {path: (int(owner), mode) for path, owner, mode in map(str.split, listing.splitlines())}
    assert found == {path: (owner, "400") for path, owner in owners.items()}


def test_no_secret_is_in_an_environment_or_a_log(stack: Stack, make_secrets: ModuleType) -> None:
    listing = _run("docker", "run", "--rm", "--network=none",
                   f"--volume={stack.project}_secrets-vault:/s:ro", SERVICES["init"]["image"],
                   "sh", "-c", "for f in /s/*; do cat $f; echo; done")  # fmt: skip
    secrets = listing.split()
    assert len(secrets) == len({copy.secret for copy in make_secrets.COPIES})
    said = stack.compose("logs", "--no-color") + json.dumps(stack.containers())
    assert not [secret for secret in secrets if secret in said]


def test_nobody_reads_without_a_token(stack: Stack) -> None:
    server = stack.url("server")
    assert _status(f"{server}/readyz") == 200
    for path in ("/v1/runs", "/v1/incidents", "/metrics", "/metrics/fleet"):
        assert _status(server + path) == 401, path
        assert _status(server + path, "A" * 43) == 401, path


def test_each_service_may_do_what_it_needs_and_no_more(stack: Stack) -> None:
    """With the very token that lies in the service's volume, from inside its container."""
    ask = (
        "import sys, urllib.request as u, urllib.error as e\n"
        "h = {'Authorization': 'Bearer ' + open('/run/spikeguard/token').read()}\n"
        "for path in sys.argv[1:]:\n"
        "    try: print(u.urlopen(u.Request('http://server:8000' + path, headers=h)).status)\n"
        "    except e.HTTPError as error: print(error.code)\n"
    )
    paths = ("/v1/runs", "/v1/tokens", "/metrics")
    agent = stack.compose("exec", "-T", "trainer", "python", "-c", ask, *paths)
    assert agent.split() == ["403", "403", "403"]


def test_prometheus_scrapes_all_its_targets(stack: Stack) -> None:
    def look() -> list[dict[str, Any]] | None:
        answer = stack.inside("prometheus", "9090/api/v1/targets")
        targets: list[dict[str, Any]] = answer["data"]["activeTargets"]
        return targets if all(t["health"] == "up" for t in targets) else None

    targets = _until(look, 45.0, stack.log)
    jobs = {target["labels"]["job"] for target in targets}
    assert jobs == {"prometheus", "spikeguard-server", "spikeguard-fleet"}


def test_the_demo_runs_spike_is_approved_and_rolled_back(stack: Stack, operator: Api) -> None:
    """The whole story through containers: the run, the spike, a person's approval, its effect."""

    def story() -> str:
        return f"{list(operator.items('/v1/incidents', 10))}\n{stack.log()}"

    command = _until(lambda: _proposed(operator), INCIDENT_LIMIT_S, story)
    _approve(operator, command)
    applied = _until(lambda: _applied(operator, command), 60.0, story)
    assert applied["decided_by"] == "Container Test"
    assert applied["applied_step"] > FAULT_STEP
    segment = _until(lambda: _rolled_back(operator), 30.0, story)
    assert segment["first_step"] <= FAULT_STEP  # it goes on from before the fault


def _rolled_back(api: Api) -> dict[str, Any] | None:
    """The segment that the rollback opened, once the run trains on in it."""
    (run,) = api.items("/v1/runs", 10)
    assert run["state"] == "live"
    assert run["name"].startswith("demo-")
    segments: list[dict[str, Any]] = api.get(run_path(RunId.parse(run["id"])))["segments"]
    grown = (s for s in segments if s["reason"] == "rollback" and s["current"])
    return next((s for s in grown if s["last_step"] is not None), None)


def _proposed(api: Api) -> dict[str, Any] | None:
    """The command that changes the run and waits for a person, if there is one by now."""
    for incident in api.items("/v1/incidents", 10, state="open"):
        proposal: dict[str, Any] | None = incident["proposal"]
        if proposal and proposal["state"] == "proposed" and proposal["verb"] == "rollback":
            return proposal
    return None


def _approve(api: Api, command: dict[str, Any]) -> None:
    """Approve what is proposed, read anew if it was revised meanwhile."""
    path = f"{command_path(CommandId.parse(command['id']))}/approve"
    for _ in range(5):
        try:
            api.post(path, {"revision": command["revision"]})
        except Refused as refusal:
            if refusal.code != "revision_changed":
                raise
            command = refusal.body["current"]
        else:
            return
    raise AssertionError("the proposal changed faster than it could be approved")


def _applied(api: Api, command: dict[str, Any]) -> dict[str, Any] | None:
    incident = IncidentId.parse(command["incident"])
    commands: list[dict[str, Any]] = api.get(incident_path(incident))["commands"]
    (found,) = [entry for entry in commands if entry["id"] == command["id"]]
    assert found["state"] not in ("refused", "failed", "unknown", "expired"), found
    return found if found["state"] in ("applied", "judged") else None
