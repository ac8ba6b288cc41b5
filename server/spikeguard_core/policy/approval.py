"""Whether the policy may approve by itself.

Law: silence is no. Only a verb whose mode is `auto`, within its budget and after its cooldown, is
approved without a person; every refusal says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spikeguard_core.policy.settings import ApprovalMode, Policy
from spikeguard_core.policy.situation import PastCommand
from spikeguard_protocol import Verb

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class AutoApproval:
    """The answer, with its reason either way."""

    allowed: bool
    reason: str


def auto_approval(verb: Verb, policy: Policy, past: Iterable[PastCommand]) -> AutoApproval:
    """May a command of `verb` be approved now without a person?

    `past` holds the run's commands of at least the last 24 hours, with their ages.
    """
    rule = policy.approval_of(verb)
    if policy.halted:
        return AutoApproval(False, "the kill switch is on: nothing is approved")
    if rule.mode is not ApprovalMode.AUTO:
        return AutoApproval(False, f"the policy asks a person to approve {verb}")
    return _within_budget(verb, policy, sorted(_automatic_ages(verb, past)))


def _within_budget(verb: Verb, policy: Policy, ages: list[float]) -> AutoApproval:
    rule = policy.approval_of(verb)
    spent = sum(age < DAY_S for age in ages)
    if spent >= rule.budget:
        return AutoApproval(
            False, f"the budget for {verb} is spent: {spent} of {rule.budget} in the last 24 hours"
        )
    if ages and ages[0] < rule.cooldown_s:
        return AutoApproval(
            False,
            f"the last automatic {verb} was {ages[0]:.0f} s ago: "
            f"the cooldown lasts {rule.cooldown_s:.0f} s",
        )
    return AutoApproval(
        True, f"automatic approval {spent + 1:,} of {rule.budget:,} in 24 hours by {policy.name}"
    )


def _automatic_ages(verb: Verb, past: Iterable[PastCommand]) -> list[float]:
    """Seconds since each automatic approval; one of unknown age counts as just now."""
    return [p.decided_s_ago or 0.0 for p in past if p.auto and p.verb is verb]
