"""What may be ordered: by the job's own settings, so that nothing is proposed that it refuses, and
by the policy without a person.

The agent tells its limits with the attempt's settings. A release that tells none has none.

A proposal outside a limit is brought inside where it then still is the same
remedy (a shorter skip, a milder learning rate), and says so; otherwise it is withdrawn with the
reason and the setting that a person has to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.policy.settings import ApprovalMode, Policy
from spikeguard_core.policy.situation import OrderLimits, PastCommand, RunSituation, Situation
from spikeguard_protocol import (
    Action,
    Apply,
    BatchRange,
    Rollback,
    ScaleLr,
    SkipBatches,
    Verb,
    verb_of,
)

DAY_S = 86_400.0
OF_AN_ORDER = ("skip_batches_most", "lr_factor_least", "lr_steps_most", "apply_steps_most")
ON_ITS_WAY = 20  # one part in so many of a distance is left for the steps until an order arrives


def read_limits(settings: Mapping[str, str]) -> OrderLimits:
    """The limits in an attempt's settings; what is missing or cannot be read limits nothing."""
    found = {f.name: _number(settings.get(f.name, "")) for f in fields(OrderLimits)}
    whole = {name: value for name, value in found.items() if value is not None}
    return OrderLimits(**whole)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < 1e18 else None


def within_reach(situation: Situation) -> tuple[Situation, str]:
    """`situation` without the targets that lie further back than the job goes, and what to say
    where there are any."""
    most = situation.limits.rollback_steps_most
    if most is None:
        return situation, ""
    oldest = situation.step - _reach(most)
    near = tuple(target for target in situation.targets if target.step >= oldest)
    beyond = len(situation.targets) - len(near)
    return replace(situation, targets=near), (
        f" {beyond} older targets are out of reach: the job gives up at most {most:.0f} steps (its "
        "setting rollback_steps_most)."
        if beyond
        else ""
    )


def _reach(most: float) -> float:
    """Steps that are gone back at most, so that the order arrives in time."""
    return most - most / ON_ITS_WAY


def out_of_reach_step(target_step: int, situation: RunSituation) -> int | None:
    """The step from which the target lies further back than the job goes; None where it never
    does."""
    most = situation.limits.rollback_steps_most
    return None if most is None else target_step + int(_reach(most)) + 1


def within_limits(action: Action, situation: RunSituation) -> tuple[Action | None, str]:
    """What of `action` the job would carry out, and why no more."""
    if (reason := spent_note(action, situation)) is not None:
        return None, reason
    kept = _inside(action, situation.limits)
    if kept == action:
        return kept, ""
    known = {name: getattr(situation.limits, name) for name in OF_AN_ORDER}
    allowed = ", ".join(f"{name} = {most:g}" for name, most in known.items() if most is not None)
    return kept, f" The job's own settings allow no more: {allowed}."


def _inside(action: Action, limits: OrderLimits) -> Action | None:
    match action:
        case SkipBatches(batches):
            skip = _shorter(batches, limits)
            return None if skip is None else SkipBatches(skip)
        case ScaleLr(factor, steps):
            rate = _milder(factor, steps, limits)
            return None if rate is None else ScaleLr(*rate)
        case Apply(name, steps):
            fewer = _fewer(steps, limits.apply_steps_most)
            return None if fewer is None else Apply(name, fewer)
        case Rollback(target, step, skip, factor, steps, cap, apply, apply_steps):
            skip = None if skip is None else _shorter(skip, limits)
            if factor is not None and steps is not None:
                factor, steps = _milder(factor, steps, limits) or (None, None)
                cap = None if factor is None else cap
            if apply_steps is not None:
                apply_steps = _fewer(apply_steps, limits.apply_steps_most)
                apply = None if apply_steps is None else apply
            return Rollback(target, step, skip, factor, steps, cap, apply, apply_steps)
    return action


def _shorter(skip: BatchRange, limits: OrderLimits) -> BatchRange | None:
    batches = _fewer(len(skip), limits.skip_batches_most)
    return None if batches is None else BatchRange(skip.first, skip.first + batches)


def _fewer(count: int, most: float | None) -> int | None:
    """`most` of them at most; None for none."""
    return (count if most is None else min(count, int(most))) or None


def _milder(factor: float, steps: int, limits: OrderLimits) -> tuple[float, int] | None:
    """The rate as the job would lower it; None where it never does."""
    least, fewer = limits.lr_factor_least or 0.0, _fewer(steps, limits.lr_steps_most)
    return None if fewer is None else (min(1.0, max(factor, least)), fewer)


def spent_note(action: Action, situation: RunSituation) -> str | None:
    """Why the job takes no more of this verb today; None if it does."""
    verb = verb_of(action)
    limits = situation.limits
    most = limits.rollbacks_a_day if verb is Verb.ROLLBACK else limits.orders_a_day
    if most is None or verb is Verb.WATCH:
        return None
    lately = sum(
        past.verb is verb and past.state in EXECUTED
        for past in situation.past
        if past.decided_s_ago is not None and past.decided_s_ago < DAY_S
    )
    if lately < most:
        return None
    name = "rollbacks_a_day" if verb is Verb.ROLLBACK else "orders_a_day"
    return (
        f" The job takes at most {most:.0f} orders to {verb} in 24 hours (its setting {name}), "
        "so a person has to act."
    )


def auto_approval(verb: Verb, policy: Policy, past: Iterable[PastCommand]) -> str | None:
    """Why a command of `verb` is approved now without a person; None where one has to decide:
    silence is no.

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
    return f"automatic approval {spent + 1:,} of {rule.budget:,} in 24 hours"
