"""`python -m spikeguard_trainer.demo`: what `make demo` runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from spikeguard_cli.api import Api, Refused, command_path, incident_path
from spikeguard_cli.command import CommandFailed
from spikeguard_cli.credentials import load_credentials
from spikeguard_protocol import CommandId, IncidentId
from spikeguard_trainer.demo.processes import Children
from spikeguard_trainer.demo.progress import Screen, last_row
from spikeguard_trainer.demo.story import Story, awaiting

RUN = "demo"
STEPS = 600
FAULT = "lr_bump@250:12:40"  # the learning rate is 40 times too high for 12 steps
START_LIMIT_S = 90.0
REPORT_LIMIT_S = 30.0
LOOK_EVERY_S = 0.5
OUTCOMES_THAT_COUNT = ("healed", "recovered")


@dataclass
class Demo:
    """One telling of the story."""

    options: Namespace
    directory: Path
    children: Children = field(default_factory=Children)
    screen: Screen = field(default_factory=lambda: Screen(STEPS))
    story: Story = field(default_factory=Story)
    first_seen: dict[tuple[str, int], float] = field(default_factory=dict)  # proposal -> when

    def run(self) -> int:
        """Start everything, tell the story, and return the exit status."""
        place = self._start_server()
        api = Api(load_credentials({"SPIKEGUARD_CREDENTIALS": place["credentials"]}))
        self.screen.say([f"server {place['server']}, dashboard {place['dashboard']}"])
        trainer = self._start_trainer(place)
        self.screen.say([f"training the reference model; the fault {FAULT} comes at its step"])
        incidents = self._follow(api, place, trainer)
        recovered = self._conclude(api, incidents, trainer.returncode)
        if not self.options.exit:
            self._stay(place)
        return 0 if recovered else 1

    def _start_server(self) -> dict[str, Any]:
        ready = self.directory / "ready.json"
        command = [sys.executable, "-m", "spikeguard_cli.main", "up", "--port", "0"]
        command += ["--dashboard-port", "0", "--directory", str(self.directory / "server")]
        credentials = str(self.directory / "credentials.json")
        log = self.directory / "server.log"
        self.screen.say(["starting Postgres, the server and the dashboard"])
        child = self.children.start(
            [*command, "--json-ready", str(ready)], {"SPIKEGUARD_CREDENTIALS": credentials}, log
        )
        _wait(ready.exists, START_LIMIT_S, child, log)
        place: dict[str, Any] = json.loads(ready.read_text())
        return {**place, "credentials": credentials}

    def _start_trainer(self, place: dict[str, Any]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "spikeguard_trainer", "--preset", "demo"]
        command += ["--steps", str(STEPS), "--run", RUN, "--fault", FAULT]
        command += ["--out", str(self.directory / "run"), "--log", str(self._training_log)]
        environment = {
            "SPIKEGUARD_SERVER": place["server"],
            "SPIKEGUARD_TOKEN_FILE": place["agent_token_file"],
            "SPIKEGUARD_SEND_INTERVAL": "0.5",
        }
        return self.children.start(command, environment, self.directory / "trainer.log")

    @property
    def _training_log(self) -> Path:
        return self.directory / "training.csv"

    def _follow(
        self, api: Api, place: dict[str, Any], trainer: subprocess.Popen[bytes]
    ) -> list[dict[str, Any]]:
        """Tell until the trainer has ended and its incidents are closed."""
        ended_at: float | None = None
        while True:
            incidents = self._look(api, place)
            self.screen.bar(last_row(self._training_log))
            if trainer.poll() is not None:
                ended_at = ended_at or time.monotonic()
                settled = all(i["has_postmortem"] for i in incidents)
                if settled or time.monotonic() - ended_at > REPORT_LIMIT_S:
                    return incidents
            time.sleep(LOOK_EVERY_S)

    def _look(self, api: Api, place: dict[str, Any]) -> list[dict[str, Any]]:
        incidents = []
        for entry in sorted(
            api.items("/v1/incidents", 20, run=f"default/{RUN}"), key=lambda i: int(i["number"])
        ):
            incident = api.get(incident_path(IncidentId.parse(entry["id"])))
            self.screen.say(self.story.tell(incident))
            if proposal := awaiting(incident):
                self._decide(api, place, incident, proposal)
            incidents.append(incident)
        return incidents

    def _decide(
        self, api: Api, place: dict[str, Any], incident: dict[str, Any], proposal: dict[str, Any]
    ) -> None:
        """Say how to approve by hand, and after a pause do it unless a person wants to."""
        key = (proposal["id"], proposal["revision"])
        if proposal["id"] not in {command for command, _ in self.first_seen}:
            self.screen.say(self._how_to_approve(place, incident, proposal))
        seen = self.first_seen.setdefault(key, time.monotonic())
        first = min(when for (name, _), when in self.first_seen.items() if name == key[0])
        if self.options.approve == "manual" or time.monotonic() - first < self.options.after:
            return
        if time.monotonic() - seen < LOOK_EVERY_S:
            return  # a revision this fresh has not been read by anybody
        try:
            path = f"{command_path(CommandId.parse(proposal['id']))}/approve"
            api.post(path, {"revision": proposal["revision"]})
        except Refused as refusal:
            self.screen.say([f"  the approval did not take: {refusal}"])

    def _how_to_approve(
        self, place: dict[str, Any], incident: dict[str, Any], proposal: dict[str, Any]
    ) -> list[str]:
        number, command = incident["number"], proposal["number"]
        by_itself = f"in {self.options.after:.0f} s the demo approves by itself"
        waits = "waiting for you" if self.options.approve == "manual" else by_itself
        program = Path(sys.executable).with_name("spikeguard")
        return [
            f"  approve by hand ({waits}):",
            f"    {place['server']}/confirm/default/{RUN}/{number}/{command}",
            f"    SPIKEGUARD_CREDENTIALS={place['credentials']} \\",
            f"      {program} approve '{incident['id']}'",
            f"    sign in at that page with the token in {place['login_token_file']}",
        ]

    def _conclude(self, api: Api, incidents: list[dict[str, Any]], status: int) -> bool:
        for incident in incidents:
            for form in ("md", "html", "json"):
                path = self.directory / f"postmortem-{incident['number']}.{form}"
                path.write_bytes(
                    api.read(f"{incident_path(IncidentId.parse(incident['id']))}/postmortem",
                             format=form)
                )  # fmt: skip
            html = self.directory / f"postmortem-{incident['number']}.html"
            self.screen.say([f"POST-MORTEM of {incident['id']}: {html} (and .md, .json)"])
        good = [i for i in incidents if i["outcome"] in OUTCOMES_THAT_COUNT]
        recovered = status == 0 and bool(incidents) and len(good) == len(incidents)
        ending = "the run recovered" if recovered else "the run did not recover"
        self.screen.say([f"training ended with status {status}: {ending}"])
        return recovered

    def _stay(self, place: dict[str, Any]) -> None:
        token = Path(place["login_token_file"])
        self.screen.say([
            "server and dashboard stay up until Ctrl-C:",
            f"  dashboard {place['dashboard']}",
            f"  server    {place['server']} (sign in with the token in {token})",
        ])  # fmt: skip
        while True:
            time.sleep(3600)


def _wait(
    ready: Callable[[], bool], limit_s: float, child: subprocess.Popen[bytes], log: Path
) -> None:
    until = time.monotonic() + limit_s
    while not ready():
        if child.poll() is not None or time.monotonic() > until:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise CommandFailed(f"the server did not start; the end of {log}:\n{tail}")
        time.sleep(0.1)


def _options() -> Namespace:
    parser = ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--exit", action="store_true", help="end when the story ends")
    parser.add_argument("--approve", choices=("auto", "manual"), default="auto")
    parser.add_argument("--after", type=float, default=10.0, help="seconds before it approves")
    parser.add_argument("--directory", type=Path, default=Path("runs/demo"), help="where all goes")
    return parser.parse_args()


def _stop(signum: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut the tidying short
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + signum)


def main() -> int:
    """Run the demo; 0 only if the run recovered."""
    options = _options()
    directory = options.directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    os.environ.pop("DATABASE_URL", None)  # the demo's database is its own
    demo = Demo(options, directory)
    try:
        return demo.run()
    except CommandFailed as failure:
        print(f"\ndemo: {failure}", file=sys.stderr)
        return 1
    finally:
        demo.children.end()


if __name__ == "__main__":
    sys.exit(main())
