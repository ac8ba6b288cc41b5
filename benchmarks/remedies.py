"""Whether the remedy that follows the cause ends better than the rule of most guards.

`python -m benchmarks.remedies [--quick] [--seeds N]`.
Closed loop: the reference trainer's model in memory, the monitor, the policy, and every command
carried out as soon as it is proposed; by the rival a loss 6 deviations high goes back and skips.
Both loops, and a twin without the fault, share their prefix to the bit and their data. What counts
is the loss on held-out text at the last step, over the twin's.

What is measured is sent as an agent sends it by default: slow norms every 10 steps, at every step
while the monitor asks for it. The norm of the update is sampled at every step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from benchmarks.destabilised import SHAPE, SIGNALS, Healthy, Job
from benchmarks.naming import SLOW
from benchmarks.report import command_line, machine, say, show
from spikeguard.optim.lr_scale import LrScale
from spikeguard.optim.optimizers import factor_of
from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.lineage import Lineage
from spikeguard_core.events import Event, Opened
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.lifecycle.incident_life import acted, fold
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.policy.proposal import propose
from spikeguard_core.policy.settings import DEFAULT_POLICY
from spikeguard_core.policy.situation import PastCommand, Situation, Target
from spikeguard_core.policy.targeting import Doubts, alarms_of, health_of
from spikeguard_protocol import (
    Action,
    BatchRange,
    CommandState,
    IncidentState,
    Medium,
    Rollback,
    ScaleLr,
    SegmentId,
    SegmentPoint,
    Stop,
    Verb,
    verb_of,
)
from spikeguard_trainer.data import BatchLoader, Corpus, read_corpus, validation_batches
from spikeguard_trainer.faults import Fault, parse_fault
from spikeguard_trainer.inject import FaultInjector, corrupt_batch

PREFIX, END = 300, 640  # steps that all runs of a seed share, and the last one
ROWS = 32  # sequences a batch
SNAPSHOT_EVERY, SLOW_EVERY, PHASE = 25, 10, 5  # steps
SEGMENT = SegmentId("0" * 16, 0)
LINEAGE = Lineage({SEGMENT: None})
RIVAL_Z, RIVAL_ROWS, RIVAL_FEWEST, RIVAL_MOST = 6.0, 100, 10, 20  # deviations, rows, rollbacks
VALIDATION, VALIDATION_ROWS = 8, 128  # batches, sequences each
HARDER = "bad_batch@321:400:0.15"  # a part of each batch is noise from then on
COMES_AGAIN = (  # with the step or the schedule, whenever the run goes over it
    "lr_bump@321:8:60",
    "lr_bump@321:40:100",
    "moment_reset@321:3:10000",
)
ONCE = (  # or with the batches, which are skipped
    "lr_bump@321:10:40",
    "moment_reset@321:3:1e12",
    "weight_noise@321:1:4",
    "weight_scale@321:1:8",
    "bit_flip@321:1:30",
    "nan_grad@321:3",
    "bad_batch.repeated@321:60",
    "gradient_ascent@321:8:40",
    HARDER,
)
SURE = ("weight_noise", "weight_scale", "bit_flip", "moment_reset")  # where the cause is at once
THROWN, WORSE = 25, 0.005  # steps, nats
QUICK = (COMES_AGAIN[:1], ("weight_noise@321:1:4", HARDER))


@dataclass(frozen=True, slots=True)
class Prefix:
    """Where all runs of a seed begin."""

    state: dict[str, Any]
    monitor: Monitor


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    loss: float  # on held-out text, nats a byte
    stopped_at: int | None  # step; None: it was trained to its end
    trained: int  # steps, those that were undone too
    commands: tuple[str, ...]  # verbs with their arguments, in order
    causes: tuple[str, ...]  # that the first incident was put down to, when acted on


@dataclass
class Loop:
    """One run from the prefix on."""

    job: Job
    prefix: Prefix
    fault: Fault | None
    comes_again: bool  # with its steps, however often the run goes back over them
    position: int = PREFIX
    incident: Incident | None = None
    past: list[PastCommand] = field(default_factory=list)
    asked: tuple[PastCommand, ...] = ()  # what waits for a person, who never comes
    skips: list[BatchRange] = field(default_factory=list)
    commands: list[Action] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    numbers: int = 0
    trained: int = 0
    loss: float = 0.0  # of the newest step
    scale: LrScale | None = None

    def __post_init__(self) -> None:
        self.job.go_back(self.prefix.state)
        self.monitor = deepcopy(self.prefix.monitor)
        self.kept: dict[int, tuple[dict[str, Any], int, Monitor]] = {}
        self.loader = _loader(self.job, self.fault)
        self.injector = _injector(self.job, self.fault)
        self._keep()

    def run(self) -> Ended:
        """Train to the end, or until a command stops it."""
        while self.job.steps < END:
            self._train()
            if self._decide():
                return self._ended(self.job.steps)
        return self._ended(None)

    def _ended(self, stopped: int | None) -> Ended:
        orders = tuple(_words(action) for action in self.commands)
        loss = held_out_loss(self.job)
        return Ended(loss, stopped, self.trained, orders, tuple(self.causes))

    def _train(self) -> None:
        step = self.job.steps + 1
        for skip in self.skips:
            self.position = skip.end if self.position in skip else self.position
        self.loader.skip_to(self.position)
        lower = partial(_lower, self.job, self.scale, step)
        values = self.job.step(next(self.loader), self.injector, lower)
        batches = BatchRange(self.position, self.position + 1)
        self.position += 1
        self.trained += 1
        slow = self.monitor.attentive or (step + PHASE) % SLOW_EVERY == 0
        measured = dict(zip(SIGNALS, values, strict=True))
        self.loss = measured["loss"]
        self._fold(self.monitor.observe([Sample(step, _sent(measured, slow), batches)]))
        if step % SNAPSHOT_EVERY == 0:
            self._keep()

    def _keep(self) -> None:
        self.kept[self.job.steps] = (self.job.state(), self.position, deepcopy(self.monitor))

    def _fold(self, events: Iterable[Event]) -> None:
        for event in events:
            self.numbers += isinstance(event, Opened)
            self.incident = fold(self.incident, event, number=self.numbers, segment=SEGMENT)
            if isinstance(event, Opened):
                self.past, self.asked = [], ()

    def _decide(self) -> bool:
        """Ask and act; whether the run was stopped."""
        incident = self.incident
        if incident is None or incident.state is IncidentState.CLOSED:
            return False
        proposal = propose(self._situation(incident), DEFAULT_POLICY)
        action = proposal.action
        number, step, cause = incident.number, self.job.steps, proposal.cause
        self.asked = ()
        if action is None:
            return False
        if proposal.by_person:
            self.asked = (PastCommand(action, CommandState.PROPOSED, number, cause=cause),)
            return False
        self.past.append(
            PastCommand(action, CommandState.JUDGED, number, True, step, step, 0.0, cause)
        )
        if verb_of(action) is not Verb.WATCH:
            self.commands.append(action)
            self.causes.extend(one.cause.value for one in incident.causes[:1])
        self._carry_out(action, incident)
        return isinstance(action, Stop)

    def _situation(self, incident: Incident) -> Situation:
        step = max(self.job.steps, incident.onset_step)
        targets = tuple(self._target(at, incident) for at in sorted(self.kept))
        every = frozenset(Verb)
        return Situation(
            incident=incident, step=step, position=self.position, targets=targets,
            capabilities=every, step_time_s=1.0, past=(*self.past, *self.asked),
        )  # fmt: skip

    def _target(self, at: int, incident: Incident) -> Target:
        health = health_of(
            SegmentPoint(SEGMENT, at),
            newest_step=self.job.steps,
            doubts=Doubts(alarms_of(incident), LINEAGE),
        )
        return Target(f"mem-{at}", SEGMENT, at, self.kept[at][1], Medium.MEMORY, health)

    def _carry_out(self, action: Action, incident: Incident) -> None:
        if isinstance(action, ScaleLr):
            self.scale = LrScale(action.factor, self.job.steps, action.steps)
        if isinstance(action, Rollback):
            self._go_back(action)
        self.monitor.intervened(self.job.steps, verb_of(action))
        self.incident = acted(incident, verb_of(action))

    def _go_back(self, action: Rollback) -> None:
        state, self.position, known = self.kept[action.step]
        self.job.go_back(state)
        self.monitor.rewind(known)
        self.kept = {at: kept for at, kept in self.kept.items() if at <= action.step}
        self.skips += [] if action.skip is None else [action.skip]
        if action.lr_factor is not None and action.lr_steps is not None:
            self.scale = LrScale(action.lr_factor, action.step, action.lr_steps, action.lr_cap)
        if self.comes_again:
            self.injector = _injector(self.job, self.fault)  # it remembers no strike


@dataclass
class RivalLoop(Loop):
    """The same run under a guard of one rule: a loss `RIVAL_Z` deviations above the mean of the
    newest ones goes back to the newest snapshot, and on without the batches since."""

    losses: list[float] = field(default_factory=list)

    def _decide(self) -> bool:
        self.losses.append(self.loss)
        newest = self.losses[-RIVAL_ROWS - 1 : -1]
        if len(newest) < RIVAL_FEWEST:
            return False
        if self.loss - fmean(newest) < RIVAL_Z * stdev(newest):
            return False
        at = max(step for step in self.kept if step < self.job.steps)
        skip = BatchRange(self.kept[at][1], self.position)
        action = Rollback(f"mem-{at}", at, skip)
        self.losses = self.losses[: at - self.job.steps]
        self.commands.append(action)
        self._go_back(action)
        return len(self.commands) >= RIVAL_MOST


def prefix_of(job: Job) -> Prefix:
    """Train the steps that all runs of `job`'s seed share."""
    monitor = Monitor()
    loader, injector = _loader(job, None), _injector(job, None)
    for step in range(1, PREFIX + 1):
        measured = dict(zip(SIGNALS, job.step(next(loader), injector), strict=True))
        slow = (step + PHASE) % SLOW_EVERY == 0
        monitor.observe([Sample(step, _sent(measured, slow), BatchRange(step - 1, step))])
    return Prefix(job.state(), monitor)


def _sent(measured: dict[str, float], slow: bool) -> dict[str, float]:
    """What an agent sends of it: the norm of the update at every step, of a sample."""
    sent = {name: value for name, value in measured.items() if slow or name not in SLOW}
    return {**sent, "update_norm_sampled": measured["update_norm"]}


def job_of(corpus: Corpus, seed: int) -> Job:
    """A run of the reference trainer's model, clipped as usual."""
    return Job(corpus, Healthy(seed, 0.95, 1.0))


@torch.no_grad()
def held_out_loss(job: Job) -> float:
    """Mean loss on text that is never trained on, nats a byte."""
    batches = list(
        validation_batches(
            job.corpus.validation, count=VALIDATION, rows=VALIDATION_ROWS, context=SHAPE.context
        )
    )
    return sum(float(job.model(*batch)) for batch in batches) / len(batches)


def _loader(job: Job, fault: Fault | None) -> BatchLoader:
    seed, faults = job.healthy.seed, () if fault is None else (fault,)
    return BatchLoader(
        job.corpus.training,
        rows=ROWS,
        context=SHAPE.context,
        seed=seed,
        corrupt=partial(corrupt_batch, faults, seed),
    )


def _injector(job: Job, fault: Fault | None) -> FaultInjector:
    return FaultInjector(
        () if fault is None else (fault,),
        job.model,
        job.optimizer,
        memory=Path("faults.json.none"),
        seed=job.healthy.seed,
        writes=False,
    )


def _lower(job: Job, scale: LrScale | None, step: int) -> None:
    """For the next step only: the schedule sets every rate anew after it."""
    factor = 1.0 if scale is None else float(factor_of(scale, step, job.groups[0]["lr"]))
    for group in job.groups:
        group["lr"] = group["lr"] * factor


def _words(action: Action) -> str:
    if not isinstance(action, Rollback):
        return verb_of(action).value
    skip = "" if action.skip is None else f" skip {action.skip}"
    rate = "" if action.lr_factor is None else f" lr x{action.lr_factor:.2g}/{action.lr_steps}"
    return f"rollback {action.step}{skip}{rate}"


@dataclass(frozen=True, slots=True)
class Pair:
    """One fault and seed, with the remedy of the cause and under the rival."""

    fault: str
    seed: int
    comes_again: bool
    twin: float  # loss at the end without a fault, nats a byte
    remedy: Ended
    rival: Ended

    @property
    def thrown(self) -> int:
        """Steps that the remedy undid."""
        return self.remedy.trained - (END - PREFIX)

    def plain(self) -> dict[str, Any]:
        """As it is printed."""
        return {
            "fault": self.fault,
            "seed": self.seed,
            "comes_again": self.comes_again,
            **{
                name: {
                    "excess": round(ended.loss - self.twin, 4),
                    "stopped_at": ended.stopped_at,
                    "steps_trained": ended.trained,
                    "commands": "; ".join(ended.commands),
                    "causes": "; ".join(ended.causes),
                }
                for name, ended in (("remedy", self.remedy), ("rival", self.rival))
            },
        }


def main() -> int:
    """Run every pair and print."""
    parser = command_line("remedies", __doc__, "three faults, one seed")
    parser.add_argument("--seeds", type=int, default=5, help="paired seeds")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is too small for more
    again, once = QUICK if options.quick else (COMES_AGAIN, ONCE)
    seeds = range(1, 2 if options.quick else options.seeds + 1)
    pairs = list(measure(seeds, again, once))
    found, plain = bars(pairs), [pair.plain() for pair in pairs]
    report = {"steps": END, "machine": machine(), "pairs": plain, "bars": found}
    show(report, options)
    for bar in found:
        say(f"{'met   ' if bar['met'] else 'missed'}  {bar['bar']}: {bar['found']}")
    return 0 if all(bar["met"] for bar in found) else 1


def measure(seeds: Sequence[int], again: Sequence[str], once: Sequence[str]) -> Iterator[Pair]:
    """Every fault under every seed."""
    corpus = read_corpus(None)
    for seed in seeds:
        run = _runner(corpus, seed)
        for text in (*again, *once):
            pair = run(text, text in again)
            say(json.dumps(pair.plain()))
            yield pair


def _runner(corpus: Corpus, seed: int) -> Callable[[str, bool], Pair]:
    """What runs a fault of `seed` in both loops."""
    job = job_of(corpus, seed)
    prefix = prefix_of(job)
    twin = Loop(job, prefix, None, False).run().loss

    def run(text: str, comes_again: bool) -> Pair:
        fault = parse_fault(text)
        remedy = Loop(job, prefix, fault, comes_again).run()
        rival = RivalLoop(job, prefix, fault, comes_again).run()
        return Pair(text, seed, comes_again, twin, remedy, rival)

    return run


def bars(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Each bar with what was found."""
    once = [pair for pair in pairs if not pair.comes_again and pair.fault != HARDER]
    sure = [pair.thrown for pair in once if pair.fault.split("@")[0] in SURE]
    worse = [  # of one seed chance tells: who skips reads other batches
        fmean(pair.remedy.loss - pair.rival.loss for pair in once if pair.fault == fault)
        for fault in {pair.fault for pair in once}
    ]
    orders = [len(pair.remedy.commands) for pair in pairs if pair.fault == HARDER]
    return [
        _bar(f"at most {THROWN} steps undone where the cause is sure", sure, THROWN),
        _bar(
            f"a fault that comes once ends no worse than the rival by {WORSE} nats in the mean",
            worse,
            WORSE,
        ),
        _bar("no order where the data became harder for good", orders, 0),
    ]


def _bar(what: str, found: Sequence[float], most: float) -> dict[str, Any]:
    worst = max(found, default=most)
    return {"bar": what, "found": f"{worst:.4g} at most", "met": worst <= most}


if __name__ == "__main__":
    sys.exit(main())
