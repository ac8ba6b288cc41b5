"""Training jobs inside one release's own environment; files are the signs that they wait for.

Law: imports only what every release has that is tried, and judges nothing. `python -m
benchmarks.upgrade_jobs PLAN` reads what to do from a file and writes what happened into another.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.faults_job import Advice, Script, TrainingJob, Verdict
from benchmarks.faults_wire import plainly
from spikeguard_protocol import AttemptEnded

LOOK_S = 0.05


@dataclass
class LongJob(TrainingJob):
    """A job that trains until it is told to finish, and waits where it is told to wait."""

    signs: Path = Path()  # the folder of the files
    gate: int = 0  # the step at which it waits for the sign `go-NAME`; 0 = at none
    refusals: list[tuple[float, str]] = field(default_factory=list)  # when, and what was said
    longest_s: float = 0.0  # that a message had to wait until it was taken

    def run_on(self) -> dict[str, Any]:
        """From the first step to the sign `finish`; what happened."""
        try:
            self._begin()
            while self.step < self.script.steps or not self._sign("finish").exists():
                self._wait()
                self._train_on()
                began = time.monotonic()
                ack = self._deliver()
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self._obey(ack)
            self.outbox.put(AttemptEnded("finished"))
            self._deliver()
        finally:
            self.close()
        return self._shown()

    def _sign(self, name: str) -> Path:
        return self.signs / name

    def _wait(self) -> None:
        if self.gate and self.segment == 0 and self.step >= self.gate:
            self.gate = 0
            while not self._sign(f"go-{self.name}").exists():
                time.sleep(LOOK_S)
        while self._sign(f"hold-{self.name}").exists():
            self._sign(f"held-{self.name}").touch()
            time.sleep(LOOK_S)

    def _shown(self) -> dict[str, Any]:
        tally = self.tally
        return {
            "run": self.name,
            "attempt": self.attempt,
            "messages": tally.messages,
            "unreached": tally.unreached,
            "cut": tally.cut,
            "refusals": self.refusals,
            "longest_s": self.longest_s,
            "acknowledged": [[*place, loss] for place, loss in tally.acknowledged.items()],
            "executed": tally.executed,
            "repeated": tally.repeated,
        }


def send(job: TrainingJob, message: Any) -> Verdict:
    """To any replica; what was refused is written down with its time."""
    verdict = plainly(job, message)
    if verdict.advice is not Advice.STORED and verdict.reason[:3].isdecimal():
        assert isinstance(job, LongJob)
        job.refusals.append((time.time(), verdict.reason))
    return verdict


def _job(plan: dict[str, Any], name: str, seed: int, onset: int, gate: int) -> LongJob:
    return LongJob(
        name, Script(seed, onset=onset, steps=plan["steps"]), plan["addresses"], plan["token"],
        Path(plan["folder"]), send, lambda _: 0, plan["pace_s"], random=Random(name),
        signs=Path(plan["signs"]), gate=gate,
    )  # fmt: skip


def main() -> int:
    """Run the jobs of the plan all at once."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    jobs = [_job(plan, *words) for words in plan["jobs"]]
    with ThreadPoolExecutor(len(jobs)) as pool:
        found = list(pool.map(LongJob.run_on, jobs))
    Path(plan["result"]).write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
