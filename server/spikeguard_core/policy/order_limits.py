"""What the job's own settings allow to be ordered, so that nothing is proposed that it refuses.

The agent tells its limits with the attempt's settings. A release that tells none has none.

Invariants: pure. A proposal outside a limit is brought inside where it then still is the same
remedy (a shorter skip, a milder learning rate), and says so; otherwise it is withdrawn with the
reason and the setting that a person has to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.policy.situation import OrderLimits, RunSituation, Situation
from spikeguard_protocol import (
    Action,
    BatchRange,
    Rollback,
    ScaleLr,
    Verb,
    verb_of,
)
from spikeguard_protocol.phrases import batches_phrase

DAY_S = 86_400.0
ON_ITS_WAY = 20  # one part in so many of a distance is left for the steps until an order arrives


@dataclass(frozen=True, slots=True)
class Limited:
    """An action within the limits, or none, and what to add to its reason."""

    action: Action | None
    note: str = ""


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


def within_reach(situation: Situation) -> Situation:
    """`situation` without the targets that lie further back than the job goes."""
    most = situation.limits.rollback_steps_most
    if most is None:
        return situation
    oldest = situation.step - _reach(most)
    return replace(situation, targets=tuple(t for t in situation.targets if t.step >= oldest))


def _reach(most: float) -> float:
    """Steps that are gone back at most, so that the order arrives in time."""
    return most - most / ON_ITS_WAY


def out_of_reach_step(target_step: int, situation: RunSituation) -> int | None:
    """The step from which the target lies further back than the job goes; None where it never
    does."""
    most = situation.limits.rollback_steps_most
    return None if most is None else target_step + int(_reach(most)) + 1


def reach_note(situation: Situation, reachable: Situation) -> str:
    """What to say where targets lie out of reach; "" where none does."""
    beyond = len(situation.targets) - len(reachable.targets)
    if not beyond:
        return ""
    return (
        f" {beyond} older targets are out of reach: the job gives up at most "
        f"{situation.limits.rollback_steps_most:.0f} steps (its setting rollback_steps_most)."
    )


def within_limits(action: Action, situation: Situation) -> Limited:
    """What of `action`, which a policy proposes, the job would carry out."""
    if (reason := spent_note(action, situation)) is not None:
        return Limited(None, reason)
    limits = situation.limits
    if isinstance(action, ScaleLr):
        rate, note = _milder(action.factor, action.steps, limits)
        return Limited(ScaleLr(*rate) if rate else None, note)
    return _rollback(action, limits) if isinstance(action, Rollback) else Limited(action)


def _rollback(action: Rollback, limits: OrderLimits) -> Limited:
    notes = []
    if action.skip is not None:
        skip, note = _shorter(action.skip, limits)
        action, notes = replace(action, skip=skip), [note]
    if action.lr_factor is not None and action.lr_steps is not None:
        rate, note = _milder(action.lr_factor, action.lr_steps, limits)
        factor, steps = rate or (None, None)
        cap = None if rate is None else action.lr_cap
        action = replace(action, lr_factor=factor, lr_steps=steps, lr_cap=cap)
        notes.append(note)
    if action.apply_steps is not None and limits.apply_steps_most is not None:
        most = min(action.apply_steps, int(limits.apply_steps_most))
        action = replace(action, apply=action.apply if most else None, apply_steps=most or None)
    return Limited(action, "".join(notes))


def _shorter(skip: BatchRange, limits: OrderLimits) -> tuple[BatchRange | None, str]:
    most = limits.skip_batches_most
    if most is None or len(skip) <= most:
        return skip, ""
    kept = BatchRange(skip.first, skip.first + int(most)) if most >= 1 else None
    return kept, (
        f" The job skips at most {most:.0f} batches by one order (its setting skip_batches_most), "
        f"not all of {batches_phrase(skip)}."
    )


def _milder(factor: float, steps: int, limits: OrderLimits) -> tuple[tuple[float, int] | None, str]:
    least, most = limits.lr_factor_least, limits.lr_steps_most
    kept = (
        factor if least is None else min(1.0, max(factor, least)),
        steps if most is None else min(steps, int(most)),
    )
    if kept == (factor, steps):
        return kept, ""
    note = (
        f" The policy would multiply the learning rate by {factor:.3g} for {steps} steps; the "
        "job's settings lr_factor_least and lr_steps_most allow less."
    )
    return (kept if kept[1] >= 1 else None), note


def spent_note(action: Action, situation: RunSituation) -> str | None:
    """Why the job takes no more of this verb today; None if it does."""
    verb = verb_of(action)
    limits = situation.limits
    most = limits.rollbacks_a_day if verb is Verb.ROLLBACK else limits.orders_a_day
    if most is None or verb is Verb.WATCH:
        return None
    lately = sum(
        past.verb is verb and past.state in EXECUTED and _within_a_day(past.decided_s_ago)
        for past in situation.past
    )
    if lately < most:
        return None
    name = "rollbacks_a_day" if verb is Verb.ROLLBACK else "orders_a_day"
    return (
        f" The job takes at most {most:.0f} orders to {verb} in 24 hours (its setting {name}), "
        "so a person has to act."
    )


def _within_a_day(age_s: float | None) -> bool:
    return age_s is not None and age_s < DAY_S
