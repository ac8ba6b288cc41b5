"""What the policy would have proposed, had it watched this log, and what that would have cost.

Nothing is done: a log cannot answer a command. What no log says of a run is assumed (`Assumed`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.lineage import Lineage
from spikeguard_core.events import Event, Opened
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.lifecycle.incident_life import fold
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.policy.cost import Cost, cost_of
from spikeguard_core.policy.finding import checks_of
from spikeguard_core.policy.proposal import Proposal, propose
from spikeguard_core.policy.settings import ApprovalMode, Policy
from spikeguard_core.policy.situation import PastCommand, Situation, Target
from spikeguard_core.policy.targeting import Alarm, Doubts, alarms_of, health_of
from spikeguard_protocol import (
    Action,
    CommandState,
    IncidentState,
    Medium,
    SegmentId,
    SegmentPoint,
    Signal,
    Verb,
    verb_of,
)
from spikeguard_replay.judging import monitor_of

SEGMENT = SegmentId("0" * 16, 0)
LINEAGE = Lineage({SEGMENT: None})
PORTION = 500  # samples taken at once while nothing is open
KEPT = 64  # checkpoints before an onset among which the policy may choose


@dataclass(frozen=True)
class Assumed:
    """What the log does not say."""

    checkpoint_every: int = 1_000  # steps; 0 = no checkpoint was ever written
    step_time_s: float | None = None  # None = the median of the log, where it holds any
    tokens_per_step: int | None = None


@dataclass(frozen=True)
class Advice:
    """A command that would have been proposed."""

    incident: int  # from 1, in the order of the listing
    step: int  # when
    action: Action
    reason: str
    cost: Cost  # if it had been carried out at `step`
    mode: ApprovalMode  # who would have had to say yes
    checks: tuple[str, ...] = ()  # to look at before saying so

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        skip = getattr(self.action, "skip", None)
        arguments = {
            one.name: getattr(self.action, one.name)
            for one in fields(self.action)
            if one.name != "skip" and getattr(self.action, one.name) is not None
        }
        if skip is not None:
            arguments["skip"] = [skip.first, skip.end]
        return {
            "incident": self.incident,
            "step": self.step,
            "verb": verb_of(self.action).value,
            "arguments": arguments,
            "approval": self.mode.value,
            "reason": self.reason,
            "checks": list(self.checks),
            "cost": {
                "steps": self.cost.steps,
                "seconds": self.cost.seconds,
                "tokens": self.cost.tokens,
                "money": self.cost.money,
            },
        }


def advise(
    samples: Sequence[Sample],
    policy: Policy,
    assumed: Assumed,
    choice: DetectorChoice | None = None,
) -> list[Advice]:
    """Every command that would have been proposed over `samples`, in order.

    A watch is approved as the policy would; any other waits, unanswered, until its incident
    closes, and is told once: again only where the policy turns to another verb.
    """
    watcher = Watcher(policy, with_pace(assumed, samples))
    for step, events in SampleFeed(monitor_of(choice), choice).told(samples):
        watcher.take(step, events)
    return watcher.advice


def with_pace(assumed: Assumed, samples: Sequence[Sample]) -> Assumed:
    """The same, with the time of a step as the log has it where nothing else is assumed."""
    name = Signal.STEP_TIME.value
    times = [one.values[name] for one in samples if name in one.values]
    if assumed.step_time_s is not None or not times:
        return assumed
    return replace(assumed, step_time_s=statistics.median(times))


@dataclass
class SampleFeed:
    """Samples on their way into a monitor."""

    monitor: Monitor
    choice: DetectorChoice | None = None

    def told(self, samples: Sequence[Sample]) -> Iterator[tuple[int, list[Event]]]:
        """Newest step and events: of every single sample around incidents, of portions
        elsewhere."""
        row = singly = 0  # row up to which every sample is taken by itself
        while row < len(samples):
            alone = self.monitor.open or row < singly
            portion = samples[row : row + (1 if alone else PORTION)]
            before = None if alone else self.monitor.dump()
            events = self.monitor.observe(portion)
            if before is not None and any(isinstance(event, Opened) for event in events):
                self.monitor, singly = Monitor.load(before), row + len(portion)
                self.monitor.use(self.choice or DetectorChoice())
                continue
            yield portion[-1].step, events
            row += len(portion)


@dataclass
class Watcher:
    """The run so far, as the policy would have seen it."""

    policy: Policy
    assumed: Assumed
    advice: list[Advice] = field(default_factory=list)
    incident: Incident | None = None
    opened: int = 0
    alarms: list[Alarm] = field(default_factory=list)  # of incidents that are over
    past: list[PastCommand] = field(default_factory=list)

    def take(self, step: int, events: Sequence[Event]) -> None:
        """What came to be known up to `step`; a waiting command is looked at anew with news."""
        for event in events:
            self._fold(event)
        if self.incident is not None and (events or self._waiting is None):
            self._ask(self.incident, step)

    def _fold(self, event: Event) -> None:
        self.opened += isinstance(event, Opened)
        incident = fold(self.incident, event, number=self.opened, segment=SEGMENT)
        if incident is not None and incident.state is IncidentState.CLOSED:
            self.alarms.extend(alarms_of(incident))
            self.past, incident = [], None
        self.incident = incident

    @property
    def _waiting(self) -> PastCommand | None:
        return next((p for p in self.past if p.state is CommandState.PROPOSED), None)

    def _ask(self, incident: Incident, step: int) -> None:
        step = max(step, incident.onset_step)
        situation = Situation(
            incident=incident,
            step=step,
            position=step,
            targets=self._targets(incident, step),
            capabilities=frozenset(Verb),
            step_time_s=self.assumed.step_time_s,
            tokens_per_step=self.assumed.tokens_per_step,
            past=tuple(self.past),
        )
        self._note(propose(situation, self.policy), situation)

    def _note(self, proposal: Proposal, situation: Situation) -> None:
        action, waiting = proposal.action, self._waiting
        if waiting is not None and (action is None or waiting.verb is not verb_of(action)):
            self.past.remove(waiting)
        if action is None or (waiting is not None and waiting.verb is verb_of(action)):
            return
        verb, number = verb_of(action), situation.incident.number
        mode = self.policy.approval_of(verb).mode
        watched = verb is Verb.WATCH and mode is ApprovalMode.AUTO
        if watched:
            done = PastCommand(
                action,
                CommandState.APPLIED,
                number,
                True,
                situation.step,
                cause=proposal.cause,
            )
            self.past.append(done)
        else:
            self.past.append(
                PastCommand(action, CommandState.PROPOSED, number, cause=proposal.cause)
            )
        self.advice.append(
            Advice(
                number,
                situation.step,
                action,
                proposal.reason,
                cost_of(action, situation, self.policy),
                mode,
                () if verb is Verb.WATCH else checks_of(situation.incident, self.policy),
            )
        )

    def _targets(self, incident: Incident, step: int) -> tuple[Target, ...]:
        """The newest checkpoints before the onset and the newest of all, with their health."""
        every = self.assumed.checkpoint_every
        if every <= 0:
            return ()
        last = incident.onset_step // every
        numbers = [*range(max(1, last - KEPT), last + 1)]
        if (newest := step // every) > last:
            numbers.append(newest)
        doubts = Doubts([*self.alarms, *alarms_of(incident)], LINEAGE)
        return tuple(_target(number * every, step, doubts, self.policy) for number in numbers)


def _target(at: int, newest: int, doubts: Doubts, policy: Policy) -> Target:
    health = health_of(
        SegmentPoint(SEGMENT, at),
        newest_step=newest,
        doubts=doubts,
        horizon_steps=policy.health_horizon_steps,
    )
    return Target(f"step-{at}", SEGMENT, at, at, Medium.DISK, health)
