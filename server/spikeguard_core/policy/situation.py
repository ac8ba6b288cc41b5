"""The input of the policy, which looks nothing up: the incident, the run, its targets and past
commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spikeguard_core.lifecycle.command_life import WAITING
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.finding import Finding, diagnose
from spikeguard_protocol import (
    Ability,
    Action,
    CommandState,
    Health,
    Medium,
    SegmentId,
    Verb,
    verb_of,
)

HEALTH_HORIZON_STEPS = 100  # calm steps after which a target is healthy
_WHY_DOUBTED = {
    Health.PENDING: f"fewer than {HEALTH_HORIZON_STEPS} calm steps followed it",
    Health.SUSPECT: "taken during a spike, or on a branch that was given up",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A checkpoint or memory snapshot that exists and lies on the run's present lineage."""

    name: str
    segment: SegmentId
    step: int  # the state after this step
    position: int  # the next position in the data order
    medium: Medium
    health: Health
    damage: str | None = None  # what lies in its tensors; with `Health.DAMAGED` alone

    @property
    def doubt(self) -> str:
        """Its health and why it is not a better one; empty: it is healthy."""
        why = self.damage or _WHY_DOUBTED.get(self.health)
        return f"{self.health}: {why}" if why else ""


@dataclass(frozen=True, slots=True)
class PastCommand:
    """A command of this run, of this incident or an earlier one. Ages are seconds before now."""

    action: Action
    state: CommandState
    incident: int  # number
    auto: bool = False  # the policy approved it, no person did
    applied_step: int | None = None
    decided_step: int | None = None  # newest step when it was approved or rejected
    decided_s_ago: float | None = None  # since it was approved or rejected
    cause: str | None = None  # diagnosis that it was put down to; None: to none
    ordered_by: str | None = None  # the person whose it is; None: the policy's

    @property
    def verb(self) -> Verb:
        return verb_of(self.action)


@dataclass(frozen=True, slots=True)
class OrderLimits:
    """What the attempt's own settings allow; named as there. None: it told no such limit."""

    lr_factor_least: float | None = None
    lr_steps_most: float | None = None
    apply_steps_most: float | None = None
    skip_batches_most: float | None = None
    rollback_steps_most: float | None = None
    rollbacks_a_day: float | None = None
    orders_a_day: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSituation:
    """Where a run stands, and what can be done in it; with or without an incident."""

    step: int  # newest step of the run
    position: int | None  # the next position in the data order
    targets: tuple[Target, ...]  # not deleted, and on the lineage of the current segment
    capabilities: frozenset[Verb]  # what the live attempt can carry out
    step_time_s: float | None = None  # the pace: `cost.pace_of`
    tokens_per_step: int | None = None
    past: tuple[PastCommand, ...] = ()  # oldest first
    limits: OrderLimits = OrderLimits()
    trains: bool = True  # False: it sends nothing, so that nobody knows
    abilities: tuple[Ability, ...] = ()  # what the live attempt says of them, and why
    mitigations: Mapping[str, str] = field(default_factory=dict)  # name to cost, as registered

    def can(self, verb: Verb) -> bool:
        return verb in self.capabilities

    def ability(self, verb: Verb) -> Ability | None:
        """What the attempt says of `verb`; None where it says nothing."""
        return next((each for each in self.abilities if each.name == verb.value), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation(RunSituation):
    """Everything a proposal depends on, besides the policy."""

    incident: Incident
    noted: str | None = None  # a change of the run near the onset that a person told, as a sentence

    @property
    def offered(self) -> PastCommand | None:
        """What somebody is asked for and may be reading; a watch asks for nothing."""
        waiting = (p for p in self.of_incident if p.state in WAITING)
        return next((p for p in waiting if p.verb is not Verb.WATCH), None)

    @property
    def finding(self) -> Finding:
        """The incident's finding, as steady as the proposal that waits."""
        offered = self.offered
        return diagnose(self.incident, None if offered is None else offered.cause)

    @property
    def said(self) -> str:
        """The incident's own reason, as a sentence."""
        return sentences(self.incident.reason.strip())

    @property
    def of_incident(self) -> tuple[PastCommand, ...]:
        """The commands of this very incident, oldest first."""
        return tuple(past for past in self.past if past.incident == self.incident.number)


def sentences(*parts: str) -> str:
    """The `parts` that say something, each as a sentence."""
    return " ".join(f"{part[:1].upper()}{part[1:].rstrip('.')}." for part in parts if part)
