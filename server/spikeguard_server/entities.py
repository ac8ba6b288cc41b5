"""The rows of the database that several packages read: one class an entity, made by `store` alone.

Times are aware datetimes in UTC. Routes, messages, pages and post-mortems are made of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.settings import PolicyScope
from spikeguard_protocol import (
    Action,
    CommandId,
    CommandState,
    IncidentId,
    Kind,
    ResponseAction,
    RunId,
    Verb,
    verb_of,
)


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A command from its proposal to its judgement."""

    run: RunId
    run_id: UUID
    incident: int  # RUN_ITSELF: a person ordered it of the run, without an incident
    number: int
    action: Action
    state: CommandState
    revision: int
    reason: str
    policy_version: int
    proposed_at: datetime
    expires_at: datetime
    policy_scope: PolicyScope = PolicyScope.PROJECT
    attempt: int = 1  # number of the one that may carry it out
    attempt_id: str = ""
    expires_in_s: float = 0.0  # by the database's clock when it was read; below 0: it is late
    expires_at_step: int | None = None
    cause: str | None = None  # the diagnosis that it was put down to
    proposed_by: str | None = None  # the person who ordered it; None: the policy
    automatic: bool = False  # the policy approved it, no person did
    escalation: int = 0  # the highest level that was told since nobody answered
    decided_at: datetime | None = None
    decided_by: str | None = None
    decided_step: int | None = None  # where the run stood then, or when nobody had in time
    decision_reason: str | None = None
    delivered_at: datetime | None = None
    finished_at: datetime | None = None
    applied_step: int | None = None
    result: str | None = None  # what the agent said
    end_reason: str | None = None  # why it ended without reaching the job
    judgement: str | None = None  # whether it worked, against the trend
    effect: str | None = None  # on the loss, or why that is not known; where somebody asked for it
    effect_known: bool = False

    @property
    def id(self) -> CommandId:
        return CommandId(IncidentId(self.run, self.incident), self.number)

    @property
    def verb(self) -> Verb:
        return verb_of(self.action)

    @property
    def key(self) -> tuple[int, int]:
        return self.incident, self.number

    def valid(self, now: datetime, step: int | None) -> bool:
        """Whether it may still be approved or delivered."""
        if now >= self.expires_at:
            return False
        return self.expires_at_step is None or step is None or step < self.expires_at_step


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """What an incident was classified as, from one moment on."""

    step: int
    at: datetime
    kind: Kind
    confidence: float
    reason: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """What a person did about an incident, beside deciding on its commands."""

    number: int  # from 1, within the incident
    at: datetime
    person: str
    action: ResponseAction
    assignee: str | None = None  # whom it was given to, or taken from
    text: str | None = None  # of a comment


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident with its times and who has it."""

    run: RunId
    run_id: UUID
    incident: Incident  # what was measured and concluded
    attempt: int  # number of the one it began in
    opened_at: datetime
    closed_at: datetime | None
    followed_to: int | None  # the last step that is still waited for
    reported_at: datetime | None  # when what its post-mortem says changed last
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None  # who looks at it
    assignee: str | None = None  # whose it is

    @property
    def number(self) -> int:
        return self.incident.number

    @property
    def id(self) -> IncidentId:
        return IncidentId(self.run, self.incident.number)

    @property
    def key(self) -> tuple[UUID, int]:
        return self.run_id, self.incident.number

    @property
    def place(self) -> tuple[int, int]:
        """Attempt and segment that it began in, by number."""
        return self.attempt, self.incident.segment.number
