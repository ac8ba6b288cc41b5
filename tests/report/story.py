"""A run told to the real domain, step by step, until its incident closes: facts for documents.

The curves are synthetic and seeded; everything said about them comes from the monitor, the life
cycles and the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import numpy as np

from spikeguard_core.detection.sample import Sample
from spikeguard_core.events import Event, LoneValue, Precursor, Revised
from spikeguard_core.lifecycle.command_life import (
    EVENT_OF_OUTCOME,
    can,
    next_command_state,
)
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.lifecycle.incident_life import acted, fold
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.policy.cost import cost_of
from spikeguard_core.policy.proposal import propose
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import PastCommand, Situation, Target
from spikeguard_protocol import (
    Action,
    BatchRange,
    CommandState,
    Health,
    IncidentState,
    Medium,
    Outcome,
    Rollback,
    RunId,
    SegmentId,
    SegmentReason,
    Verb,
    verb_of,
)
from spikeguard_server.entities import CommandRow, RevisionRow
from spikeguard_server.report import (
    AttemptFact,
    PostMortem,
    RecordedCurve,
)

START = datetime(2026, 3, 14, 2, 51, 7, tzinfo=UTC)
ATTEMPT = "00c0ffee00c0ffee"
RUN = RunId("default", "gpt-124m-7")
STEP_TIME_S = 1.37
TARGETS_EVERY = 50
Damage = Callable[[int], float]  # nats above the curve, at a step that the damage reaches


@dataclass
class Story:
    """One run with one fault, driven to the close of its incident."""

    onset: int
    damage: Damage
    seed: int = 7
    length: int = 2_600
    approve_after_steps: int = 40
    policy: Policy = field(default_factory=lambda: Policy(price_per_hour=32.8))

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.monitor = Monitor()
        self.incident: Incident | None = None
        self.revisions: list[RevisionRow] = []
        self.commands: list[CommandRow] = []
        self.precursors: list[Precursor] = []
        self.columns: list[tuple[SegmentId, list[int], list[float], list[float]]] = []
        self.kept_to: list[int | None] = []
        self.clock_s, self.step, self.position, self.opened_at = 0.0, 0, 0, START
        self.bad: set[int] = set()
        self.skipped: BatchRange | None = None
        self._open_segment()

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.clock_s)

    def run(self) -> PostMortem:
        """Train until the incident is closed and 120 steps more."""
        after = 0
        while self.step < self.length and after < 120:
            self._train()
            self._decide()
            closed = self.incident is not None and self.incident.state is IncidentState.CLOSED
            after += closed
        return self._facts()

    def _open_segment(self) -> None:
        self.columns.append((SegmentId(ATTEMPT, len(self.columns)), [], [], []))
        self.kept_to.append(None)

    def _train(self) -> None:
        self.step += 1
        self.clock_s += STEP_TIME_S
        if self.skipped is not None and self.position in self.skipped:
            self.position = self.skipped.end
        loss = 3.1 + 4.2 * math.exp(-self.step / 260) + 0.018 * self.rng.standard_normal()
        grad = 0.62 * math.exp(0.09 * self.rng.standard_normal())
        if len(self.columns) == 1:
            extra = self.damage(self.step)
            loss, grad = loss + extra, grad * (1 + 6 * extra) if self.step >= self.onset else grad
        batches = BatchRange(self.position, self.position + 1)
        self.position += 1
        _, steps, losses, grads = self.columns[-1]
        for column, value in ((losses, loss), (grads, grad)):
            column.append(value)
        steps.append(self.step)
        sample = Sample(self.step, {"loss": loss, "grad_norm": grad}, batches)
        for event in self.monitor.observe([sample]):
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Precursor):
            self.precursors.append(event)
            return
        was_open = self.incident is not None
        self.incident = fold(self.incident, event, number=3, segment=self.columns[-1][0])
        assert self.incident is not None
        assert not isinstance(event, LoneValue)
        if not was_open:
            self.opened_at = self.now
        if not isinstance(event, Revised) or self._worth_a_revision(event):
            self.revisions.append(
                RevisionRow(
                    event.step,
                    self.now,
                    event.judgement.kind,
                    event.judgement.confidence,
                    event.judgement.reason,
                )
            )

    def _worth_a_revision(self, event: Revised) -> bool:
        last = self.revisions[-1]
        return last.kind is not event.judgement.kind or last.reason != event.judgement.reason

    def _situation(self, incident: Incident) -> Situation:
        targets = tuple(
            Target(
                f"step-{step}",
                self.columns[0][0],
                step,
                step,
                Medium.DISK,
                Health.HEALTHY if incident.onset_step - step > 100 else Health.SUSPECT,
            )
            for step in range(TARGETS_EVERY, incident.onset_step, TARGETS_EVERY)
        )
        past = tuple(
            PastCommand(c.action, c.state, 3, applied_step=c.applied_step) for c in self.commands
        )
        return Situation(
            incident=incident, step=self.step, position=self.position, targets=targets,
            capabilities=frozenset(Verb), step_time_s=STEP_TIME_S, tokens_per_step=524_288,
            past=past,
        )  # fmt: skip

    def _decide(self) -> None:
        incident = self.incident
        if incident is None or incident.state is IncidentState.CLOSED:
            return
        waiting = [c for c in self.commands if c.state is CommandState.PROPOSED]
        if waiting:
            self._perhaps_apply(waiting[0], incident)
            return
        proposal = propose(self._situation(incident), self.policy)
        if proposal.action is None or self._proposed_before(proposal.action):
            return
        number = len(self.commands) + 1
        self.commands.append(
            CommandRow(
                run=RUN,
                run_id=UUID(int=7),
                incident=3,
                number=number,
                action=proposal.action,
                state=CommandState.PROPOSED,
                revision=1,
                reason=proposal.reason,
                policy_version=self.policy.version,
                proposed_at=self.now,
                expires_at=self.now + timedelta(seconds=600),
            )
        )

    def _proposed_before(self, action: Action) -> bool:
        return any(verb_of(c.action) is verb_of(action) for c in self.commands)

    def _perhaps_apply(self, command: CommandRow, incident: Incident) -> None:
        auto = verb_of(command.action) is Verb.WATCH
        wait_s = STEP_TIME_S * (1 if auto else self.approve_after_steps)
        if self.clock_s - (command.proposed_at - START).total_seconds() < wait_s:
            return
        done = replace(
            command,
            state=CommandState.APPLIED if auto else CommandState.JUDGED,
            automatic=auto,
            decided_at=self.now,
            decided_by=None if auto else "mara.lindqvist",
            decision_reason=None if auto else "agree, the level is not coming back",
            decided_step=self.step,
            delivered_at=self.now + timedelta(seconds=1),
            finished_at=self.now + timedelta(seconds=3),
            applied_step=self.step,
            result="applied",
            judgement=None if auto else "held: loss on trend again 100 steps past the onset",
            cost=cost_of(command.action, self._situation(incident), self.policy),
        )
        self.commands[self.commands.index(command)] = done
        self.incident = acted(incident, verb_of(command.action))
        self.monitor.intervened(self.step, verb_of(command.action))
        if isinstance(command.action, Rollback):
            self._go_back(command.action)

    def _go_back(self, action: Rollback) -> None:
        self.kept_to[-1] = action.step
        self.step = self.position = action.step
        self.skipped = action.skip
        self._open_segment()

    def _facts(self) -> PostMortem:
        incident = self.incident
        assert incident is not None
        outcome = incident.outcome
        assert outcome is not None
        self.commands = [_void(command, outcome, self.now) for command in self.commands]
        curves = tuple(self._curve(i, incident.onset_step) for i in range(len(self.columns)))
        return PostMortem(
            run=RUN,
            incident=incident,
            opened_at=self.opened_at,
            closed_at=self.now,
            written_at=self.now + timedelta(seconds=5),
            curves=curves,
            revisions=tuple(self.revisions),
            commands=tuple(self.commands),
            precursors=tuple(self.precursors),
            attempts=(AttemptFact(1, ATTEMPT, START, 8, "0.1.0"),),
            step_time_s=STEP_TIME_S,
            tokens_per_step=524_288,
            price_per_hour=self.policy.price_per_hour,
        )

    def _curve(self, index: int, onset: int) -> RecordedCurve:
        segment, steps, losses, grads = self.columns[index]
        keep = [i for i, step in enumerate(steps) if step >= onset - 300]
        return RecordedCurve(
            segment,
            1,
            SegmentReason.ROLLBACK if index else SegmentReason.START,
            tuple(steps[i] for i in keep),
            {
                "loss": tuple(losses[i] for i in keep),
                "grad_norm": tuple(grads[i] for i in keep),
            },
            self.kept_to[index],
        )


def _void(command: CommandRow, outcome: Outcome, now: datetime) -> CommandRow:
    """What nobody decided before the close is void."""
    event = EVENT_OF_OUTCOME[outcome]
    if not can(command.state, event):
        return command
    return replace(
        command,
        state=next_command_state(command.state, event),
        finished_at=now,
        end_reason="it closed",
    )


def healing(onset: int = 1_200) -> PostMortem:
    """A spike that decays by itself within some 60 steps."""
    return Story(onset, lambda s: 0.0 if s < onset else 2.4 * math.exp(-(s - onset) / 18)).run()


def lingering(onset: int = 1_203) -> PostMortem:
    """Damage that stays, rolled back after a person agreed."""

    def damage(step: int) -> float:
        return 0.0 if step < onset else 0.42 + 1.3 * math.exp(-(step - onset) / 9)

    return Story(onset, damage).run()


def divergent(onset: int = 1_203) -> PostMortem:
    """A loss that climbs and turns into NaN until it is rolled back."""

    def damage(step: int) -> float:
        if step < onset:
            return 0.0
        return math.nan if step > onset + 45 else 0.2 + 0.09 * (step - onset)

    return Story(onset, damage).run()
