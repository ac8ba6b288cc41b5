"""`spikeguard up` and a training job as child processes; the API as a signed-in person sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from spikeguard_cli.api import Api, Refused
from spikeguard_cli.credentials import load_credentials
from spikeguard_protocol import CommandId, IncidentId
from spikeguard_protocol.paths import command_path, incident_path
from spikeguard_trainer.stage.processes import Children, wait_for

START_LIMIT_S = 90.0


@dataclass(frozen=True)
class Place:
    """Where a started service is."""

    server: str  # URL
    dashboard: str | None  # URL
    pages: str | None  # the same, by the name that a browser's sign-in holds for
    agent_token_file: str
    login_token_file: str
    credentials: str  # file of a signed-in person


@dataclass(frozen=True)
class Service:
    """A running service."""

    place: Place
    process: subprocess.Popen[bytes]
    api: Api

    @classmethod
    def start(
        cls,
        children: Children,
        directory: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
    ) -> Service:
        """Run `spikeguard up` in `directory` on free ports until it is healthy."""
        directory.mkdir(parents=True, exist_ok=True)
        ready, credentials = directory / "ready.json", directory / "credentials.json"
        ready.unlink(missing_ok=True)
        log = directory / "server.log"
        command = [sys.executable, "-m", "spikeguard_cli.main", "up", *options]
        command += ["--directory", str(directory / "server"), "--json-ready", str(ready)]
        if os.geteuid() == 0:  # as in a container: what is staged is nobody's secret
            command += ["--account", "nobody"]
        ports = [] if "--port" in options else ["--port", "0", "--dashboard-port", "0"]
        ours = {**(environment or {}), "SPIKEGUARD_CREDENTIALS": str(credentials)}
        process = children.start([*command, *ports], ours, log)
        wait_for(ready.exists, START_LIMIT_S, process, log)
        told = json.loads(ready.read_text()) | {"credentials": str(credentials)}
        place = Place(**{each.name: told.get(each.name) for each in fields(Place)})
        return cls(place, process, Api(load_credentials(ours)))

    def agent_environment(self, send_interval_s: float) -> dict[str, str]:
        """What a training job needs to reach it."""
        return {
            "SPIKEGUARD_SERVER": self.place.server,
            "SPIKEGUARD_TOKEN_FILE": self.place.agent_token_file,
            "SPIKEGUARD_SEND_INTERVAL": str(send_interval_s),
        }

    def incidents(self, run: str) -> list[dict[str, Any]]:
        """The incidents of `run` in project `default` with all details, oldest first."""
        try:
            found = list(self.api.items("/v1/incidents", 100, run=f"default/{run}"))
        except Refused as refusal:
            if refusal.status == 404:  # the job has not reported yet
                return []
            raise
        ids = sorted((IncidentId.parse(entry["id"]) for entry in found), key=lambda i: i.number)
        return [self.api.get(incident_path(incident)) for incident in ids]

    def approve(self, command: dict[str, Any]) -> dict[str, Any]:
        """Approve the revision of `command` that was read."""
        path = f"{command_path(CommandId.parse(command['id']))}/approve"
        approved: dict[str, Any] = self.api.post(path, {"revision": command["revision"]})
        return approved

    def sign_in_link(self, next_path: str = "") -> str:
        """A link that signs the browser of the signed-in person in, once."""
        made = self.api.post("/v1/sessions/links", {"next": next_path})
        return str(made["link"])

    def postmortem(self, incident: dict[str, Any], form: str) -> bytes:
        """The post-mortem of a closed incident as `md`, `html` or `json`."""
        path = f"{incident_path(IncidentId.parse(incident['id']))}/postmortem"
        return self.api.read(path, format=form)


def awaiting(incident: dict[str, Any]) -> dict[str, Any] | None:
    """The command of `incident` that waits for a person and would change the run, if any."""
    proposal: dict[str, Any] | None = incident["proposal"]
    if proposal is None or proposal["state"] != "proposed" or proposal["verb"] == "watch":
        return None
    return proposal


@dataclass(frozen=True)
class Job:
    """One start of the reference trainer."""

    process: subprocess.Popen[bytes]
    directory: Path

    @classmethod
    def start(
        cls,
        children: Children,
        directory: Path,
        environment: Mapping[str, str],
        *options: str,
        module: str = "spikeguard_trainer",
    ) -> Job:
        """Run `python -m MODULE` with its output, log and summary in `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", module, *options]
        command += ["--out", str(directory / "out"), "--log", str(directory / "training.csv")]
        command += ["--summary", str(directory / "summary.json")]
        quiet = {"OMP_WAIT_POLICY": "passive", **environment}  # the server needs the cores as well
        return cls(children.start(command, quiet, directory / "trainer.log"), directory)

    @property
    def log(self) -> Path:
        return self.directory / "training.csv"
