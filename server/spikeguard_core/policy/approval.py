"""Whether the policy may approve by itself.

Law: silence is no. Only a verb whose mode is `auto`, within its budget and after its cooldown, is
approved without a person.
"""

from __future__ import annotations

from collections.abc import Iterable

from spikeguard_core.policy.settings import ApprovalMode, Policy
from spikeguard_core.policy.situation import PastCommand
from spikeguard_protocol import Verb

DAY_S = 86_400.0


def auto_approval(verb: Verb, policy: Policy, past: Iterable[PastCommand]) -> str | None:
    """Why a command of `verb` is approved now without a person; None where one has to decide.

    `past` holds the run's commands of at least the last 24 hours, with their ages; an automatic
    approval of unknown age counts as just now.
    """
    rule = policy.approval_of(verb)
    if policy.halted or rule.mode is not ApprovalMode.AUTO:
        return None
    ages = [p.decided_s_ago or 0.0 for p in past if p.auto and p.verb is verb]
    spent = sum(age < DAY_S for age in ages)
    if spent >= rule.budget or any(age < rule.cooldown_s for age in ages):
        return None
    return f"automatic approval {spent + 1:,} of {rule.budget:,} in 24 hours by {policy.name}"
