"""What the fields of a policy mean. Made by `python -m benchmarks.reference`: change the
comments in `settings` instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

POLICY: Final[Mapping[str, str]] = {
    "version": "counted by the server; a policy that is sent may name the one it replaces",
    "act_confidence": "confidence in the kind from which more than watching is proposed",
    "sure_confidence": "confidence from which a rise within the noise is acted on too",
    "patience_steps": "steps after the onset, before a loss that still climbs is acted on",
    "lingering_patience_steps": "steps after the peak until one that stays up is acted on",
    "lingering_patience_share": "that wait in a short run: this share of its steps",
    "watch_steps": "steps that an order to watch lasts, until the run is looked at again",
    "calm_steps": "finite steps after a dropped update, until the incident closes",
    "ask_again_steps": "steps until what nobody answered is proposed again, at least",
    "few_steps": "a loss that settles within so many steps of its cause: few batches did it",
    "few_skip_least": "batches that are skipped at least",
    "few_skip_most": "batches that are skipped at most where few batches did it",
    "near_steps": "a target within so many steps before the cause is 'just before' it",
    "skip_most": "batches that are skipped at most, whatever did it",
    "skip_share": "that limit in a short run: this share of its steps",
    "margin_steps": "steps between a rollback's target and the cause, at least",
    "optimizer_back_steps": "steps to go back where the optimizer's state is suspect",
    "optimizer_back_share": "the same in a short run: this share of its steps",
    "health_horizon_steps": "calm steps after it was saved, until a target is healthy",
    "lr_factors": "for the first recurrence, the second, ...; each in (0, 1)",
    "lr_steps": "steps at the lowered learning rate, before it ramps back",
    "most_rollbacks": "rollbacks of one incident; after that a person decides what else",
    "expires_in_s": "seconds until a proposal that nobody answers expires",
    "expires_after_steps": "steps until it expires, if that comes first",
    "price_per_hour": "price of an hour of the whole job, in `currency`",
    "currency": "of `price_per_hour`, 1 to 8 characters",
    "approval": "who says yes, by verb",
    "rules": "the project's own rules, asked before anything is proposed",
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
