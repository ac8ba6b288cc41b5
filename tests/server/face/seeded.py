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
    BatchDetail,
    BatchRange,
    CommandResult,
    LayerNorms,
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
    TokenHistogram,
    encode,
)

VERBS = ("rollback", "skip_batches", "scale_lr", "checkpoint_now", "watch", "stop")
CALM = {"lr": 3e-3, "update_norm": 30.0, "param_norm": 50.0, "token_entropy": 3.1}
EXCESS = 2.4  # nats above the trend
LOOK_EVERY_S = 0.4
NEAR = 12  # steps on either side of a fault of which detail is told
LAYERS = tuple(
    f"layers.{n}.{part}.weight" for n in range(12) for part in ("attention.wqkv", "mlp.up")
)
USUAL_BINS = (0.0, 0.05, 0.09, 0.11, 0.11, 0.11, 0.11, 0.11, 0.10, 0.09, 0.07, 0.05)
BAD_BINS = (0.03, 0.02, 0.02, 0.03, 0.88, 0.01, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0)
SETTINGS = {"optimizer": "AdamW", "beta2": "0.95", "clip": "1.0"}
LINKS = {"Weights & Biases": "https://wandb.ai/acme/pretraining/runs/8f3k2x1q"}


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
    skip: BatchRange | None = None  # left out after a rollback
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
            AttemptStarted(
                None, 8, VERBS, "0.1.0", tokens_per_step=4096, settings=SETTINGS, links=LINKS
            ),
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
        onset = self.step + 1
        for _ in range(fault.lasts):
            self.train(1, EXCESS, **fault.first)
        self.train(NEAR, EXCESS, **fault.stays)
        self.send(*self._layers(fault, onset), *self._batches(fault, onset))
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
        self.step, self.skip = target, _skipped(command["arguments"])
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
        positions = tuple(BatchRange(at, at + 1) for at in map(self._position, numbers))
        return replace(Samples(0, numbers, columns, positions), segment=self.segment)

    def _position(self, step: int) -> int:
        """Of the batch that `step` trains on, in the data order."""
        skip = self.skip
        return step - 1 + (0 if skip is None or step <= skip.first else skip.end - skip.first)

    def _layers(self, fault: Fault, onset: int) -> list[LayerNorms]:
        """Gradient norms by layer: one moves first and the others with the step after, or all."""
        alone = fault.name == "damaged-weights"
        return [
            LayerNorms(0, step, "grad_norm", {
                name: (0.05 + 0.005 * self.random.random()) * _grown(place, step - onset, alone)
                for place, name in enumerate(LAYERS)
            })
            for step in range(onset - NEAR, onset + NEAR)
        ]  # fmt: skip

    def _batches(self, fault: Fault, onset: int) -> list[BatchDetail]:
        """Batches as the loop shows them; those of bad data hold one token over and over."""
        bad = range(onset, onset + fault.lasts) if fault.name == "bad-batch" else range(0)
        return [
            _batch(step, self._position(step), bad=step in bad)
            for step in range(onset - 4, onset + 5)
        ]


def _grown(place: int, since: int, alone: bool) -> float:
    """How many times its usual norm the layer at `place` has, `since` steps after the onset."""
    first = place == LAYERS.index("layers.7.mlp.up.weight")
    if since < 0 or (since == 0 and alone and not first):
        return 1.0
    return 24.0 if first and alone else 4.0 + 0.2 * place


def _batch(step: int, position: int, *, bad: bool) -> BatchDetail:
    shares = ((0.88, 0.03), (0.01, 0.0)) if bad else ((0.05, 0.04), (0.05, 0.04))
    histogram = TokenHistogram(
        4096, 100, step - 1, BAD_BINS if bad else USUAL_BINS, USUAL_BINS,
        (1542, 98213) if bad else (262, 290), *shares,
        ("\u25a0", "\ufffd") if bad else (" the", " of"),
    )  # fmt: skip
    name = f"crawl-2026-05/part-0041.jsonl:{18_200 + position}"
    snippet = (
        "\u25a0 " * 60 if bad else "The river was first surveyed in 1871 by an expedition that"
    )
    return BatchDetail(
        0, step, 0, position, (name,), 0, 8, 5 if bad else 2, 7.93 if bad else 2.31, snippet,
        histogram,
    )  # fmt: skip


def _skipped(arguments: Mapping[str, Any]) -> BatchRange | None:
    skip = arguments.get("skip")
    return None if skip is None else BatchRange(*skip)
