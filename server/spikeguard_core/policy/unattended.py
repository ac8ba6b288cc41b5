"""What the policy proposes over a run where nobody answers: a log, or a job without a server.

A watch counts as approved where the policy approves it; any other command waits until its incident
closes. Each is told once: again only where the policy turns to another verb.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.lineage import Lineage
from spikeguard_core.events import Event, Opened
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.lifecycle.incident_life import fold
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.policy.proposal import propose
from spikeguard_core.policy.rules import Proposal
from spikeguard_core.policy.settings import ApprovalMode, Policy
from spikeguard_core.policy.situation import PastCommand, Situation, Target
from spikeguard_core.policy.targeting import Alarm, Doubts, alarms_of, health_of, with_damage
from spikeguard_protocol import (
    Ability,
    Action,
    CommandState,
    IncidentState,
    SegmentId,
    SegmentPoint,
    TargetSaved,
    Verb,
    verb_of,
)

PORTION = 500  # samples taken at once while nothing is open
Targets = Callable[[int, int], Iterable[TargetSaved]]  # by an incident's onset and the newest step


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A command that the policy would have somebody decide on."""

    action: Action
    proposal: Proposal
    situation: Situation


@dataclass
class UnattendedRun:
    """The run so far, as the policy sees it."""

    policy: Policy
    segment: SegmentId
    targets: Targets
    monitor: Monitor = field(default_factory=Monitor)
    step_time_s: float | None = None
    capabilities: frozenset[Verb] = frozenset(Verb)  # what the run can carry out
    abilities: tuple[Ability, ...] = ()  # why, as it says itself
    mitigations: Mapping[str, str] = field(default_factory=dict)  # that the run has registered
    incident: Incident | None = None  # the open one
    opened: int = 0  # incidents so far
    reason: str = ""  # of the newest proposal, also where that is to do nothing
    _alarms: list[Alarm] = field(default_factory=list)  # of incidents that are over
    _past: list[PastCommand] = field(default_factory=list)
    _told: Verb | None = None  # of the open incident, the last

    def watch(
        self, samples: Sequence[Sample]
    ) -> Iterator[tuple[Sequence[Event], Unanswered | None]]:
        """Events and the command that is new: of every single sample around incidents, of portions
        elsewhere, which are judged anew singly where an incident opened in one."""
        row = singly = 0  # row up to which every sample is taken by itself
        while row < len(samples):
            alone = self.monitor.open or row < singly
            portion = samples[row : row + (1 if alone else PORTION)]
            before = None if alone else pickle.dumps(self.monitor)  # in a fifth of deepcopy's time
            events = self.monitor.observe(portion)
            if before is not None and any(isinstance(event, Opened) for event in events):
                self.monitor, singly = pickle.loads(before), row + len(portion)
                continue
            yield events, self.take(portion[-1].step, events)
            row += len(portion)

    def take(self, step: int, events: Sequence[Event]) -> Unanswered | None:
        """What came to be known up to `step`; the command that is new, if one is."""
        for event in events:
            self.opened += isinstance(event, Opened)
            incident = fold(self.incident, event, number=self.opened, segment=self.segment)
            if incident is not None and incident.state is IncidentState.CLOSED:
                self._alarms.extend(alarms_of(incident))
                self._past, self._told, incident = [], None, None
            self.incident = incident
        if self.incident is None:
            self.reason = ""
        if self.incident is None or not (events or self._waiting is None):
            return None
        situation = self._situation(self.incident, step)
        proposal = propose(situation, self.policy)
        self.reason = proposal.reason
        return self._note(proposal, situation)

    @property
    def _waiting(self) -> PastCommand | None:
        return next((p for p in self._past if p.state is CommandState.PROPOSED), None)

    def _situation(self, incident: Incident, step: int) -> Situation:
        doubts = Doubts([*self._alarms, *alarms_of(incident)], Lineage({self.segment: None}))
        saved = (
            Target(
                one.name, self.segment, one.step, one.position, one.medium,
                health_of(SegmentPoint(self.segment, one.step), newest_step=step, doubts=doubts),
                one.damage,
            )
            for one in self.targets(incident.onset_step, step)
        )  # fmt: skip
        return Situation(
            incident=incident,
            step=step,
            position=step,
            targets=with_damage(saved),
            capabilities=self.capabilities,
            abilities=self.abilities,
            mitigations=self.mitigations,
            step_time_s=self.step_time_s,
            past=tuple(self._past),
        )

    def _note(self, proposal: Proposal, situation: Situation) -> Unanswered | None:
        action, waiting = proposal.action, self._waiting
        verb = None if action is None else verb_of(action)
        if waiting is not None and waiting.verb is verb:
            return None
        if waiting is not None:
            self._past.remove(waiting)
        if action is None or verb is None:
            return None
        number = situation.incident.number
        asked = PastCommand(action, CommandState.PROPOSED, number, cause=proposal.cause)
        if verb is Verb.WATCH and self.policy.approval_of(verb).mode is ApprovalMode.AUTO:
            asked = replace(
                asked, state=CommandState.APPLIED, auto=True, applied_step=situation.step
            )
        self._past.append(asked)
        told, self._told = self._told, verb
        return None if told is verb else Unanswered(action, proposal, situation)
