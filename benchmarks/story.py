"""How long a spike takes from the step that caused it to the command that mends it.

Real processes throughout: Postgres, server, reference trainer with an injected fault, and a person
who approves at once. Prints the detection delay in steps (against the step at which the fault was
injected, not against what the detector believes) and the seconds of each stage. What the remedies
leave of the loss is measured by `benchmarks.remedies`.

    python -m benchmarks.story [--quick]
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import Spread, command_line, machine, say, show
from spikeguard_trainer.demo.demo import last_row
from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Job, Service, awaiting

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
class Watcher:
    """Follows one job through the API, approving what is proposed at once."""

    service: Service
    job: Job
    run: str
    delay_steps: int | None = None  # detected step - fault step
    outcome: str | None = None
    stages: dict[str, float] = field(default_factory=dict)  # seconds on one monotonic clock

    def follow(self) -> Watcher:
        """Until the job has ended and the incident, if any, is closed."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            self._look()
            if self.job.process.poll() is not None and self._settled():
                break
            time.sleep(LOOK_EVERY_S)
        return self

    def _look(self) -> None:
        row = last_row(self.job.log)
        if row and int(row["step"]) >= FAULT_STEP:
            self._mark("faulted")  # its row is in the log
        for incident in self.service.incidents(self.run)[:1]:
            self._mark("opened")
            self.delay_steps = incident["detected_step"] - FAULT_STEP
            self.outcome = incident["outcome"]
            if proposal := awaiting(incident):
                self._mark("proposed")
                self.service.approve(proposal)
                self._mark("approved")
            if any(_mended(command) for command in incident["commands"]):
                self._mark("applied")

    def _settled(self) -> bool:
        return all(i["state"] == "closed" for i in self.service.incidents(self.run))

    def _mark(self, stage: str) -> None:
        self.stages.setdefault(stage, time.monotonic())


def _mended(command: dict[str, Any]) -> bool:
    return command["verb"] == "rollback" and command["state"] in ("applied", "judged")


def measure(seeds: int, directory: Path) -> list[Watcher]:
    """One story for every fault and seed, one after the other on one service."""
    children = Children()
    try:
        service = Service.start(children, directory / "service", "--no-dashboard")
        found = []
        for seed in range(seeds):
            for fault in FAULTS:
                found.append(_story(children, service, directory, fault, seed))
                say(f"{fault}, seed {seed}: {found[-1].outcome}, {found[-1].stages}")
        return found
    finally:
        children.end()


def _story(children: Children, service: Service, place: Path, fault: str, seed: int) -> Watcher:
    run = f"{fault.partition('@')[0].replace('_', '-')}-{seed}"
    options = [*SIZE, "--seed", str(seed), "--run", run, "--fault", fault]
    environment = service.agent_environment(SEND_INTERVAL_S)
    pace = ("--step-time", str(STEP_TIME_S))
    job = Job.start(children, place / run, environment, *options, *pace)
    return Watcher(service, job, run).follow()


def summarise(found: list[Watcher]) -> dict[str, Any]:
    """Median and spread of every stage."""

    def spread(start: str, end: str) -> Spread | None:
        times = [one.stages for one in found if {start, end} <= one.stages.keys()]
        return Spread.of([each[end] - each[start] for each in times])

    delays = [float(s.delay_steps) for s in found if s.delay_steps is not None]
    return {
        "stories": len(found),
        "recovered": sum(one.outcome == "recovered" for one in found),
        "detection_delay_steps": Spread.of(delays),
        "fault_to_incident_s": spread("faulted", "opened"),
        "incident_to_proposal_s": spread("opened", "proposed"),
        "approval_to_applied_s": spread("approved", "applied"),
        "fault_to_applied_s": spread("faulted", "applied"),
    }


def main() -> None:
    """Print the spread of every stage."""
    quick = "one seed a fault, some two minutes"
    options = command_line("story", __doc__, quick).parse_args()
    with tempfile.TemporaryDirectory(prefix="spikeguard-story-") as place:
        result = summarise(measure(1 if options.quick else 3, Path(place)))
    plain = {k: asdict(v) if isinstance(v, Spread) else v for k, v in result.items()}
    show({"machine": machine(), "step_time_s": STEP_TIME_S, **plain}, options)


if __name__ == "__main__":
    main()
