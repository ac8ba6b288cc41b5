"""What the fields of a policy mean. Made by `python -m benchmarks.reference`: change the
comments in `settings` instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

POLICY: Final[Mapping[str, str]] = {
    "version": "counted by the server; a policy that is sent may name the one it replaces",
    "act_confidence": "probability of the kind before anything but watching is proposed",
    "sure_confidence": "from which a kind counts although single rows hardly stand out",
    "patience_steps": "after the onset, before a climbing loss is acted on",
    "lingering_patience_steps": "after the peak, for one that stays up: most still heal",
    "lingering_patience_share": "of the steps trained so far: the same for a short run",
    "watch_steps": "look again after so many steps",
    "calm_steps": "finite steps after a dropped update that end the matter",
    "ask_again_steps": "steps to wait after a person rejected the same verb",
    "few_steps": "the peak comes within so many steps of the onset",
    "few_skip_least": "batches, where a few did the damage",
    "few_skip_most": "batches, the same",
    "near_steps": "a target so close before the onset is 'just before'",
    "skip_most": "batches, of a spike that lingers or diverges",
    "skip_share": "of the steps trained so far: what a short run may skip at most",
    "margin_steps": "a target lies at least so far before the onset",
    "optimizer_back_steps": "steps back where the optimizer's state is suspect",
    "optimizer_back_share": "of the steps trained so far: the same for a short run",
    "health_horizon_steps": "calm steps after which a target is healthy",
    "lr_factors": "for the first recurrence, the second, ...; each in (0, 1)",
    "lr_steps": "steps at the lowered learning rate, before it ramps back",
    "most_rollbacks": "an incident; after that a person has to think",
    "expires_in_s": "seconds that a proposal waits for a decision",
    "expires_after_steps": "steps that it waits",
    "price_per_hour": "of the whole job, in `currency`",
    "currency": "of `price_per_hour`, 1 to 8 characters",
    "approval": "who says yes, by verb",
    "rules": "the project's own, asked before anything is proposed",
    "remedies": "by cause",
    "detection": "detector and its settings",
    "escalation": "seconds a proposal waits before level 1, 2, ... is told; at most 5",
    "quiet": "hours in which only what cannot wait is told",
    "halted": "the kill switch: nothing is approved, nothing delivered",
    "scope": "where it was found; no setting",
}
APPROVAL: Final[Mapping[str, str]] = {
    "mode": "who says yes",
    "budget": "automatic approvals a run gets in 24 hours",
    "cooldown_s": "seconds between two automatic approvals",
    "approvals": "people who have to say yes: 1, or 2 different ones",
}
