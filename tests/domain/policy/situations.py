"""Situations to ask the policy about: a lingering spike at step 1200 unless told otherwise."""

from __future__ import annotations

from typing import Any

from spikeguard_core.events import Trend
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.situation import PastCommand, Situation, Target
from spikeguard_core.suspicion import Mark, Suspicion
from spikeguard_protocol import (
    Ability,
    Action,
    BatchRange,
    Cause,
    CommandState,
    Health,
    IncidentState,
    Kind,
    Medium,
    SegmentId,
    Verb,
)

SEGMENT = SegmentId("00c0ffee00c0ffee", 0)
EVERY_VERB = frozenset(Verb)


def incident(**changes: Any) -> Incident:
    """A settled-looking lingering incident, 140 steps old, with its peak right at the onset."""
    values: dict[str, Any] = {
        "number": 3,
        "state": IncidentState.OPEN,
        "segment": SEGMENT,
        "onset_step": 1200,
        "onset_batches": BatchRange(1199, 1200),
        "detected_step": 1201,
        "peak_step": 1203,
        "newest_step": 1340,
        "kind": Kind.LINGERING,
        "confidence": 0.82,
        "reason": "loss is 0.31 above trend and has stopped falling",
        "signal": "loss",
        "pre_loss": 3.1,
        "peak_loss": 4.6,
        "excess": 0.31,
        "trend": Trend(1199, 3.1, 0.0, 0.02),
        "dropped": False,
        "settled": False,
        "worst_z": {"loss": 75.0},
        "first_moves": {"loss": 1200},
        "anomalous_step": 1340,
    }
    return Incident(**{**values, **changes})


def target(step: int, health: Health = Health.HEALTHY, medium: Medium = Medium.DISK) -> Target:
    """A target of the run's first segment, where step s consumed position s - 1."""
    kind = "ckpt" if medium is Medium.DISK else "mem"
    return Target(f"{kind}-{step}", SEGMENT, step, step, medium, health)


TARGETS = (
    target(200),
    target(900),
    target(1000),
    target(1150, Health.PENDING),
    target(1190, Health.PENDING, Medium.MEMORY),
    target(1250, Health.SUSPECT, Medium.MEMORY),
)


def situation(
    about: Incident | None = None,
    *,
    step: int = 1340,
    targets: tuple[Target, ...] = TARGETS,
    capabilities: frozenset[Verb] = EVERY_VERB,
    past: tuple[PastCommand, ...] = (),
    abilities: tuple[Ability, ...] = (),
) -> Situation:
    """What is asked of the policy at `step`."""
    return Situation(
        incident=about or incident(),
        step=step,
        position=step,
        targets=targets,
        capabilities=capabilities,
        step_time_s=1.5,
        tokens_per_step=524_288,
        past=past,
        abilities=abilities,
    )


def blamed(
    cause: Cause, sure: float = 0.9, mark: Mark | None = None, **changes: Any
) -> tuple[Suspicion, ...]:
    """A ranking with `cause` in front."""
    rest = Suspicion(Cause.UNKNOWN, 1.0 - sure) if cause is not Cause.UNKNOWN else None
    first = Suspicion(cause, sure, (f"what speaks for {cause}",), mark, **changes)
    return (first,) if rest is None else (first, rest)


def done(
    action: Action,
    state: CommandState = CommandState.JUDGED,
    *,
    step: int = 1340,
    number: int = 3,
) -> PastCommand:
    """A command of the incident, decided and applied at `step`."""
    applied = state in (CommandState.APPLIED, CommandState.JUDGED)
    return PastCommand(action, state, number, False, step if applied else None, step, 60.0)
