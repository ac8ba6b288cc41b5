"""`spikeguard demo`: a training run, a spike, an approved rollback and the post-mortem."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from spikeguard_cli.api import Refused
from spikeguard_cli.command import CommandFailed
from spikeguard_protocol import CommandId
from spikeguard_protocol.paths import confirm_path
from spikeguard_trainer.demo.story import Story, ending, undecided
from spikeguard_trainer.faults import Fault, FaultError, FaultName, parse_fault
from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Job, Service, awaiting

MARKER = ".spikeguard-demo"  # stands in a folder that a demo may empty
STEPS = 600
REPORT_LIMIT_S = 30.0
LOOK_EVERY_S = 0.5
BAR_WIDTH = 28
LINE_EVERY_S = 10.0  # where the output is no terminal, a line now and then
FAULT_STEP = 250  # at which the fault comes
SIZES: Mapping[str, str] = {
    FaultName.LR_BUMP: ":12:40"
}  # of faults; others as the trainer has them


def last_row(log: Path) -> dict[str, str] | None:
    """The newest complete row of the trainer's CSV log, or None before there is one."""
    try:
        with log.open("rb") as file:
            head = file.readline().decode().strip().split(",")
            start = file.tell()
            file.seek(0, 2)
            file.seek(max(start, file.tell() - 4096))
            rows = file.read().decode().rsplit("\n", 2)
    except OSError:
        return None
    values = rows[-2].split(",") if len(rows) > 1 else []
    return dict(zip(head, values, strict=True)) if len(values) == len(head) else None


class Screen:
    """Prints lines above a progress bar that is redrawn in place."""

    def __init__(self, total: int, *, live: bool | None = None) -> None:
        self.total = total
        self.live = sys.stdout.isatty() if live is None else live
        self._started = time.monotonic()
        self._last_plain = 0.0

    def say(self, lines: Iterable[str]) -> None:
        """Print `lines`, each with the time since the start."""
        for line in lines:
            stamp = "" if line.startswith(" ") or not line else f"[{self._clock()}] "
            indent = " " * 8 if not stamp and line else ""
            print(f"{self._wipe()}{stamp}{indent}{line}", flush=True)

    def bar(self, row: dict[str, str] | None) -> None:
        """Redraw the bar from a row of the log."""
        step = int(row["step"]) if row else 0
        loss = f"loss {float(row['loss']):.3f}" if row else "loading"
        done = round(BAR_WIDTH * min(1.0, step / self.total))
        text = f"training [{'#' * done}{'.' * (BAR_WIDTH - done)}] step {step}/{self.total}  {loss}"
        if self.live:
            print(f"{self._wipe()}{text}", end="", flush=True)
        elif time.monotonic() - self._last_plain > LINE_EVERY_S:
            self._last_plain = time.monotonic()
            print(f"[{self._clock()}] {text}", flush=True)

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._started)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _wipe(self) -> str:
        return "\r\x1b[K" if self.live else ""


def demo_fault(text: str) -> Fault:
    """The fault that `text` names: a name alone, or as the trainer takes it. Raise `FaultError`
    with those there are."""
    name, at, rest = text.strip().partition("@")
    known = name.lower().replace("-", "_")
    usual = f"{FAULT_STEP}{SIZES.get(known, '')}"
    return parse_fault(f"{known}@{rest if at else usual}")


@dataclass
class Demo:
    """One telling of the story."""

    options: Namespace
    directory: Path
    name: str  # of the run; a new one each time, since a database may outlive its folder
    children: Children = field(default_factory=Children)
    screen: Screen = field(default_factory=lambda: Screen(STEPS))
    story: Story = field(default_factory=Story)
    proposed_at: dict[str, float] = field(default_factory=dict)  # command -> monotonic seconds

    @property
    def hold(self) -> Path:
        """While this file is there the run goes on past its end."""
        return self.directory / "hold"

    def run(self) -> int:
        """Start everything, tell the story, and return the exit status."""
        self.screen.say(["starting Postgres, the server and the dashboard"])
        service = Service.start(self.children, self.directory)
        place = service.place
        self.screen.say([f"server {place.server}, dashboard {place.pages}"])
        fault = self.options.fault
        self.screen.say([f"training the reference model; the fault {fault} comes at its step"])
        job = self._train(service)
        incidents = self._follow(service, job)
        content = self._conclude(service, incidents, job.process.returncode)
        if not self.options.exit:
            self._stay(service)
        return 0 if content else 1

    def _train(self, service: Service) -> Job:
        self.hold.touch()
        options = ["--preset", "demo", "--steps", str(STEPS), "--run", self.name]
        options += ["--fault", str(self.options.fault), "--hold", str(self.hold)]
        environment = service.agent_environment(send_interval_s=0.5)
        return Job.start(self.children, self.directory / "run", environment, *options)

    def _follow(self, service: Service, job: Job) -> list[dict[str, Any]]:
        """Tell until the trainer has ended and its incidents are written up."""
        ended_at: float | None = None
        while True:
            incidents = self._look(service)
            row = last_row(job.log)
            self.screen.bar(row)
            if not undecided(incidents, int(row["step"]) if row else 0, self.options.fault.step):
                self.hold.unlink(missing_ok=True)
            if job.process.poll() is not None:
                ended_at = ended_at or time.monotonic()
                settled = all(i["has_postmortem"] for i in incidents)
                if settled or time.monotonic() - ended_at > REPORT_LIMIT_S:
                    return incidents
            time.sleep(LOOK_EVERY_S)

    def _look(self, service: Service) -> list[dict[str, Any]]:
        incidents = service.incidents(self.name)
        for incident in incidents:
            self.screen.say(self.story.tell(incident))
            if proposal := awaiting(incident):
                self._decide(service, incident, proposal)
        return incidents

    def _decide(self, service: Service, incident: dict[str, Any], proposal: dict[str, Any]) -> None:
        """Say how to approve by hand, and after a pause do it unless a person wants to."""
        now = time.monotonic()
        if proposal["id"] not in self.proposed_at:
            self.proposed_at[proposal["id"]] = now
            self.screen.say(self._how_to_approve(service, incident, proposal))
        rushed = now - self.proposed_at[proposal["id"]] < self.options.after
        if self.options.approve == "manual" or rushed:
            return
        try:
            service.approve(proposal)
        except Refused as refusal:
            self.screen.say([f"  the approval did not take: {refusal}"])

    def _how_to_approve(
        self, service: Service, incident: dict[str, Any], proposal: dict[str, Any]
    ) -> list[str]:
        place, page = service.place, confirm_path(CommandId.parse(proposal["id"]))
        by_itself = f"in {self.options.after:.0f} s the demo approves by itself"
        waits = "waiting for you" if self.options.approve == "manual" else by_itself
        program = Path(sys.executable).with_name("spikeguard")
        return [
            f"  decide by hand ({waits}; the run trains on):",
            f"    {service.sign_in_link(page)}",
            "      (signs your browser in, once, within 10 minutes)",
            f"    or SPIKEGUARD_CREDENTIALS={place.credentials} \\",
            f"      {program} approve '{incident['id']}'   # reject '{incident['id']}' --reason …",
        ]

    def _conclude(
        self, service: Service, incidents: list[dict[str, Any]], status: int | None
    ) -> bool:
        for incident in incidents:
            self.screen.say([f"POST-MORTEM of {incident['id']}: {self._save(service, incident)}"])
        lines, content = ending(incidents, status)
        self.screen.say(lines)
        return content

    def _save(self, service: Service, incident: dict[str, Any]) -> str:
        stem = self.directory / f"postmortem-{incident['number']}"
        for form in ("md", "json", "html"):
            stem.with_suffix(f".{form}").write_bytes(service.postmortem(incident, form))
        return f"{stem}.html (and .md, .json)"

    def _stay(self, service: Service) -> None:
        place = service.place
        lines = [
            "server and dashboard stay up until Ctrl-C:",
            f"  dashboard {place.pages}",
            f"  sign in   {service.sign_in_link()} (once, within 10 minutes)",
            f"  later     {place.server}/login with the token in {place.login_token_file}",
        ]
        self.screen.say(lines)
        while True:
            time.sleep(3600)


def _empty(directory: Path) -> None:
    """Make `directory` an empty folder of ours; never delete what another program put there."""
    marker = directory / MARKER
    if directory.exists() and any(directory.iterdir()) and not marker.exists():
        raise CommandFailed(f"{directory} holds other files; name an empty --directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    marker.touch()


def _stop(signum: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut the tidying short
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + signum)


def run(options: Namespace) -> int:
    """Run the demo; 0 only if no harm is left, or a person wanted it so."""
    try:
        options.fault = demo_fault(options.fault)
    except FaultError as error:
        raise CommandFailed(str(error)) from None
    directory = options.directory.resolve()
    _empty(directory)
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    os.environ.pop("DATABASE_URL", None)  # the demo's database is its own
    demo = Demo(options, directory, time.strftime("demo-%H%M%S"))
    try:
        return demo.run()
    finally:
        demo.children.end()
