"""Incidents made of messages alone: what a job would have sent, of three faults whose cause shows.

No process and no training: a run of some 450 steps is twenty POSTs. For tests that walk through
pages, and for pictures of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import httpx

from spikeguard_protocol import (
    AttemptStarted,
    BatchRange,
    CommandResult,
    Medium,
    Message,
    Record,
    ResultState,
    Samples,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
    TargetSaved,
    encode,
)

VERBS = ("rollback", "skip_batches", "scale_lr", "checkpoint_now", "watch", "stop")
CALM = {"lr": 3e-3, "update_norm": 30.0, "param_norm": 50.0, "token_entropy": 3.1}
EXCESS = 2.4  # nats above the trend
LOOK_EVERY_S = 0.4


@dataclass(frozen=True)
class Fault:
    """What goes wrong after step 400, and what a page has to say of it."""

    name: str
    first: Mapping[str, float]  # signals of the first steps, beside a loss that leaves its trend
    lasts: int  # steps with these
    stays: Mapping[str, float]  # signals of all steps after them
    cause: str  # as pages name it

    def __str__(self) -> str:
        return self.name


FAULTS = (
    Fault("bad-batch", {"token_entropy": 0.2}, 3, {}, "bad data"),
    Fault("learning-rate-bump", {"lr": 0.12}, 10, {}, "learning rate too high"),
    Fault(
        "damaged-weights",
        {"param_norm": 75.0},
        3,
        {"param_norm": 75.0},
        "weights changed by no update",
    ),
)


@dataclass
class SeededRun:
    """One run as its agent would tell of it. `agents` and `people` are calls with their tokens."""

    agents: httpx.Client
    people: httpx.Client
    name: str
    project: str = "default"
    sequence: int = 0
    step: int = 0
    segment: int = 0
    random: Random = field(default_factory=lambda: Random(7))

    @property
    def attempt(self) -> str:
        return f"{abs(hash((self.project, self.name))):016x}"[:16]

    @property
    def path(self) -> str:
        return f"/v1/runs/{self.project}/{self.name}"

    def send(self, *records: Record) -> None:
        """One message, which has to be taken."""
        self.sequence += 1
        message = Message(self.project, self.name, self.attempt, self.sequence, 0.0, records)
        answer = self.agents.post("/v1/messages", content=encode(message))
        answer.raise_for_status()

    def train(self, steps: int, excess: float = 0.0, **signals: float) -> None:
        """So many steps, each with a loss `excess` above its trend."""
        self.send(self._samples(steps, excess, CALM | signals))

    def begin(self) -> None:
        """400 calm steps with a checkpoint every 100."""
        self.send(
            AttemptStarted(None, 1, VERBS, "seeded", tokens_per_step=4096),
            SegmentStarted(0, SegmentReason.START, None, 0),
        )
        for _ in range(4):
            samples = self._samples(100, 0.0, CALM)
            self.send(
                samples,
                TargetSaved(f"step-{self.step}", 0, self.step, self.step, Medium.DISK),
            )

    def fail(self, fault: Fault) -> dict[str, Any]:
        """Bring `fault` about; answers with the incident once it proposes a rollback."""
        if fault.name == "learning-rate-bump":
            self.train(1, **fault.first)  # the loss leaves its trend with the step after
        for _ in range(fault.lasts):
            self.train(1, EXCESS, **fault.first)
        for _ in range(12):
            self.train(20, EXCESS, **fault.stays)
            incident = self.incident()
            proposal = incident and incident["proposal"]
            if proposal and proposal["verb"] == "rollback":
                assert incident is not None
                return incident
        raise RuntimeError(f"{self.name}: nothing was proposed: {self.incident()}")

    def carry_out(self, command: Mapping[str, Any]) -> None:
        """What the job does with an approved rollback, and 80 calm steps from its target on."""
        self.train(1, EXCESS)  # its answer delivers the command
        target, here = command["arguments"]["step"], self.step
        parent = SegmentPoint(SegmentId(self.attempt, self.segment), target)
        self.segment += 1
        self.send(
            SegmentStarted(self.segment, SegmentReason.ROLLBACK, parent, target, command["id"]),
            CommandResult(command["id"], ResultState.APPLIED, f"back to step {target}", here),
        )
        self.step = target
        self.train(170)

    def incident(self) -> dict[str, Any] | None:
        """The newest, with its details."""
        found = self.people.get("/v1/incidents", params={"run": f"{self.project}/{self.name}"})
        items = found.json()["items"]
        if not items:
            return None
        detail: dict[str, Any] = self.people.get(
            f"{self.path}/incidents/{items[0]['number']}"
        ).json()
        return detail

    def until(self, seen: Callable[[dict[str, Any]], Any], within_s: float = 60.0) -> Any:
        """What `seen` finds in the incident, once it finds anything."""
        deadline = time.monotonic() + within_s
        while not (found := seen(self.incident() or {})):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: waited in vain: {self.incident()}")
            time.sleep(LOOK_EVERY_S)
        return found

    def _samples(self, steps: int, excess: float, signals: Mapping[str, float]) -> Samples:
        first, self.step = self.step + 1, self.step + steps
        numbers = tuple(range(first, self.step + 1))
        noise = [self.random.gauss(0, 0.01) for _ in numbers]
        columns = {
            "loss": tuple(
                2.0 + math.exp(-n / 200) + e + excess for n, e in zip(numbers, noise, strict=True)
            ),
            "grad_norm": tuple(0.4 + self.random.gauss(0, 0.01) + excess for _ in numbers),
            "step_time": (0.5,) * steps,
            **{name: (value,) * steps for name, value in signals.items()},
        }
        positions = tuple(BatchRange(n - 1, n) for n in numbers)
        return replace(Samples(0, numbers, columns, positions), segment=self.segment)
