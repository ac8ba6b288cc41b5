"""What the policy would have proposed, as text for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spikeguard_cli.wording import command_words, duration
from spikeguard_core.policy.settings import Policy
from spikeguard_protocol.phrases import paragraphs
from spikeguard_replay.advice import Advice, Assumed


def assumptions(policy: Policy, assumed: Assumed) -> list[str]:
    """What the log did not say, in sentences."""
    every = assumed.checkpoint_every
    saved = f"a checkpoint every {every:,} steps, all kept" if every else "no checkpoint"
    pace = assumed.step_time_s
    paced = "step time unknown" if pace is None else f"{pace:g} s a step"
    price = policy.price_per_hour
    priced = "no price" if price is None else f"{price:g} {policy.currency} an hour"
    return [
        saved,
        paced,
        priced,
        "one batch a step",
        "every command can be carried out",
        "nobody answered any proposal",
    ]


def advice_json(advice: Sequence[Advice], policy: Policy, assumed: Assumed) -> dict[str, Any]:
    """As `--json` adds it."""
    return {
        "policy_version": policy.version,
        "currency": policy.currency,
        "assumed": assumptions(policy, assumed),
        "proposals": [one.plain() for one in advice],
    }


def advice_listing(advice: Sequence[Advice], policy: Policy, assumed: Assumed) -> str:
    """A paragraph a command, after a line that says what was assumed."""
    count = f"{len(advice)} {'command' if len(advice) == 1 else 'commands'}"
    head = f"\nPolicy {policy.version} would have proposed {count}; nothing was done."
    said = f"Assumed: {'; '.join(assumptions(policy, assumed))}."
    return "\n".join([head, said, *(_paragraph(one, policy) for one in advice)])


def _paragraph(one: Advice, policy: Policy) -> str:
    who = "the policy approves it" if one.mode.value == "auto" else "a person decides"
    why = "\n".join(f"    {said}" for said in paragraphs(one.reason))
    checks = "".join(f"\n    check first: {check}" for check in one.checks)
    return (
        f"\n#{one.incident}  step {one.step:,}: {command_words(one.plain())} ({who})\n"
        f"{why}{checks}\n    cost: {_cost(one, policy)}"
    )


def _cost(one: Advice, policy: Policy) -> str:
    cost = one.cost
    if not cost.steps:
        return "nothing to train anew"
    parts = [f"{cost.steps:,} steps to train anew"]
    if cost.seconds is not None:
        parts.append(duration(cost.seconds))
    if cost.money is not None:
        parts.append(f"{cost.money:,.2f} {policy.currency}")
    return ", ".join(parts)
