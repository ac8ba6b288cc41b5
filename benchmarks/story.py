"""How long a spike takes from the step that caused it to the command that mends it.

Real processes throughout: Postgres, server, reference trainer with an injected fault, and a person
who approves at once. Prints the detection delay in steps (against the step at which the fault was
injected, not against what the detector believes) and the seconds of each stage. What the remedies
leave of the loss is measured by `benchmarks.remedies`.

    python -m benchmarks.story [--quick]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Spread, command_line, machine, say
from spikeguard_trainer.demo.progress import last_row
from spikeguard_trainer.stage.job import Job
from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Service, awaiting

FAULT_STEP = 200
STEPS = 420
FAULTS = (  # strong enough that waiting would not do
    f"bit_flip@{FAULT_STEP}",
    f"weight_noise@{FAULT_STEP}:1:30",
    f"lr_bump@{FAULT_STEP}",
    f"moment_reset@{FAULT_STEP}:3:1e12",
)
SIZE = ("--preset", "tiny", "--batch", "36", "--steps", str(STEPS))
STEP_TIME_S = 0.04  # pace of the job, stated with the figures
SEND_INTERVAL_S = 0.25
LOOK_EVERY_S = 0.02
LIMIT_S = 120.0


@dataclass
class Stages:
    """One run's times, seconds on one monotonic clock; None where it never came so far."""

    delay_steps: int | None = None  # detected step - fault step
    faulted: float | None = None  # the faulty step's row was in the log
    opened: float | None = None  # the API showed the incident
    proposed: float | None = None
    approved: float | None = None
    applied: float | None = None
    outcome: str | None = None

    def seconds(self, start: str, end: str) -> float | None:
        """From one stage to a later one."""
        first, last = getattr(self, start), getattr(self, end)
        return None if first is None or last is None else last - first


@dataclass
class Watcher:
    """Follows one job through the API, approving what is proposed at once."""

    service: Service
    job: Job
    run: str
    stages: Stages = field(default_factory=Stages)

    def follow(self) -> Stages:
        """Until the job has ended and the incident, if any, is closed."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            self._look()
            if self.job.process.poll() is not None and self._settled():
                break
            time.sleep(LOOK_EVERY_S)
        return self.stages

    def _look(self) -> None:
        row = last_row(self.job.log)
        if row and int(row["step"]) >= FAULT_STEP:
            self._mark("faulted")
        for incident in self.service.incidents(self.run)[:1]:
            self._mark("opened")
            self.stages.delay_steps = incident["detected_step"] - FAULT_STEP
            self.stages.outcome = incident["outcome"]
            if proposal := awaiting(incident):
                self._mark("proposed")
                self.service.approve(proposal)
                self._mark("approved")
            if any(_mended(command) for command in incident["commands"]):
                self._mark("applied")

    def _settled(self) -> bool:
        return all(i["state"] == "closed" for i in self.service.incidents(self.run))

    def _mark(self, stage: str) -> None:
        if getattr(self.stages, stage) is None:
            setattr(self.stages, stage, time.monotonic())


def _mended(command: dict[str, Any]) -> bool:
    return command["verb"] == "rollback" and command["state"] in ("applied", "judged")


def measure(seeds: int, directory: Path) -> list[Stages]:
    """One story for every fault and seed, one after the other on one service."""
    children = Children()
    try:
        service = Service.start(children, directory / "service", "--no-dashboard")
        found = []
        for seed in range(seeds):
            for fault in FAULTS:
                found.append(_story(children, service, directory, fault, seed))
                say(f"{fault}, seed {seed}: {found[-1]}")
        return found
    finally:
        children.end()


def _story(children: Children, service: Service, place: Path, fault: str, seed: int) -> Stages:
    run = f"{fault.partition('@')[0].replace('_', '-')}-{seed}"
    options = [*SIZE, "--seed", str(seed), "--run", run, "--fault", fault]
    environment = service.agent_environment(SEND_INTERVAL_S)
    pace = ("--step-time", str(STEP_TIME_S))
    job = Job.start(children, place / run, environment, *options, *pace)
    return Watcher(service, job, run).follow()


def summarise(found: list[Stages]) -> dict[str, Any]:
    """Median and spread of every stage."""

    def spread(start: str, end: str) -> Spread | None:
        values = [stages.seconds(start, end) for stages in found]
        return Spread.of([value for value in values if value is not None])

    delays = [float(s.delay_steps) for s in found if s.delay_steps is not None]
    return {
        "stories": len(found),
        "recovered": sum(stages.outcome == "recovered" for stages in found),
        "detection_delay_steps": Spread.of(delays),
        "fault_to_incident_s": spread("faulted", "opened"),
        "incident_to_proposal_s": spread("opened", "proposed"),
        "approval_to_applied_s": spread("approved", "applied"),
        "fault_to_applied_s": spread("faulted", "applied"),
    }


def main() -> int:
    """Print the spread of every stage."""
    quick = "one seed a fault, some two minutes"
    options = command_line("story", __doc__, quick).parse_args()
    with tempfile.TemporaryDirectory(prefix="spikeguard-story-") as place:
        result = summarise(measure(1 if options.quick else 3, Path(place)))
    plain = {k: asdict(v) if isinstance(v, Spread) else v for k, v in result.items()}
    print(json.dumps({"machine": machine(), "step_time_s": STEP_TIME_S, **plain}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
