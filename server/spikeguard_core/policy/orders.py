"""What may be ordered: by a person, by the job's own settings, and by the policy without a person.

Nothing of a person's order is changed in silence: it is refused by field, limit and remedy, or kept
with warnings. A proposal outside a limit is brought inside where it then still is the same remedy
(a shorter skip, a milder rate), and says so; else it is withdrawn with the setting to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.policy.settings import DAY_S, ApprovalMode, Policy
from spikeguard_core.policy.situation import (
    OrderLimits,
    PastCommand,
    RunSituation,
    Situation,
    Target,
    sentences,
)
from spikeguard_protocol import (
    Action,
    Apply,
    BatchRange,
    ProtocolError,
    Rollback,
    ScaleLr,
    SkipBatches,
    Verb,
    from_json,
    verb_of,
)
from spikeguard_protocol.orders import type_of_verb
from spikeguard_protocol.phrases import batches_phrase

OF_AN_ORDER = ("skip_batches_most", "lr_factor_least", "lr_steps_most", "apply_steps_most")
ON_ITS_WAY = 20  # one part in so many of a distance is left for the steps until an order arrives


@dataclass(frozen=True, slots=True)
class Plan:
    """What is going to be done, and what to know of it."""

    action: Action
    warnings: tuple[str, ...] = ()


class Refusal(ValueError):
    """Why it cannot be ordered, and what to do instead."""

    def __init__(self, field: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.field, self.message, self.remedy = field, message, remedy


def plan_of(verb: Verb, arguments: Mapping[str, Any], situation: RunSituation) -> Plan:
    """The action of `verb` as the job would take it; raise `Refusal`.

    `arguments` are those of a command, ranges as `[first, end]`; the step of a rollback is that of
    its target.
    """
    if (refusal := why_not(verb, situation)) is not None:
        raise refusal
    target = _target(arguments.get("target"), situation) if verb is Verb.ROLLBACK else None
    action = _action(verb, arguments, target)
    _check_now(action, target, situation)
    kept, note = within_limits(action, situation)
    if kept != action:
        names = [one.name for one in fields(action) if kept is not None]
        changed = [name for name in names if getattr(kept, name) != getattr(action, name)]
        field, why = changed[0] if changed else "verb", note.strip().rstrip(".")
        raise Refusal(field, why, "Order less, or raise the job's limit")
    warnings = [] if target is None else _doubts(action, target, situation)
    return Plan(action, tuple(filter(None, [*warnings, losses_of(verb, situation)])))


def why_not(verb: Verb, situation: RunSituation) -> Refusal | None:
    """Why the attempt that trains now cannot be ordered to `verb`; None if it can."""
    if situation.can(verb):
        return None
    ability = situation.ability(verb)
    why = "its job did not say that it can" if ability is None else ability.reason
    remedy = "" if ability is None else ability.remedy
    return Refusal(
        "verb",
        f"The job cannot {verb.replace('_', ' ')}: {why.rstrip('.')}",
        remedy or "docs/agent.md says what a job needs for it",
    )


def losses_of(verb: Verb, situation: RunSituation) -> str:
    """What `verb` loses in this loop, as the job says it; empty: nothing."""
    ability = situation.ability(verb)
    if ability is None or not (ability.remedy or ability.cost):
        return ""
    return f"Of this job: {sentences(ability.reason, ability.cost, ability.remedy)}"


def _target(name: object, situation: RunSituation) -> Target:
    target = next((t for t in situation.targets if t.name == name), None)
    if target is None:
        raise Refusal(
            "target",
            f"The run has no target {name!r:.140} to go back to: it never had, it is deleted, or "
            "it lies on a branch that was given up",
            "Choose one that `GET /v1/runs/{project}/{name}/options` or the page lists",
        )
    if out_of_reach(target, situation):
        raise Refusal(
            "target",
            f"{target.name} lies {situation.step - target.step:,} steps back; the job gives up at "
            f"most {situation.limits.rollback_steps_most:,.0f} (its setting rollback_steps_most)",
            "Choose a newer target",
        )
    return target


def _action(verb: Verb, arguments: Mapping[str, Any], target: Target | None) -> Action:
    """Raise `Refusal` for what the verb does not take or needs, and for what no job takes."""
    read: dict[str, Any] = {} if target is None else {"step": target.step}
    for name, value in arguments.items():
        if isinstance(value, list | tuple) and len(value) == 2:
            value = dict(zip(("first", "end"), value, strict=True))
        read.setdefault(name, value)
    try:
        return cast(Action, from_json(type_of_verb[verb], read, ""))
    except ProtocolError as error:
        field = error.field.removeprefix(".")
        raise Refusal(field, f"{verb}: {field} {error.limit}", error.remedy) from None


def _check_now(action: Action, target: Target | None, situation: RunSituation) -> None:
    """Raise `Refusal` for batches that were read already, and a mitigation that there is not."""
    match action:
        case SkipBatches(batches) if batches.first < (here := situation.position or 0):
            said = f"Batch {batches.first:,} was read already: the run stands at batch {here:,}"
            remedy = "Skip batches that come later, or roll back and skip"
            raise Refusal("batches", said, remedy)
        case Apply(name):
            _check_mitigation("name", name, situation)
        case Rollback(skip=skip, apply=name):
            if name is not None:
                _check_mitigation("apply", name, situation)
            if skip is not None and target is not None and skip.first < target.position:
                raise Refusal(
                    "skip",
                    f"{target.name} has read all batches before {target.position:,}, so that "
                    f"{batches_phrase(skip)} cannot be left out behind it",
                    f"Begin at {target.position:,} or later, or take an older target",
                )


def _check_mitigation(field: str, name: str, situation: RunSituation) -> None:
    if name not in situation.mitigations or not situation.can(Verb.APPLY):
        known = ", ".join(situation.mitigations) or "it has none"
        said = f"The job has registered no mitigation {name!r}"
        raise Refusal(field, said, f"Choose one that it has: {known}")


def out_of_reach(target: Target, situation: RunSituation) -> bool:
    """Whether it lies further back than the job goes."""
    most = situation.limits.rollback_steps_most
    return most is not None and situation.step - target.step > most


def _doubts(action: Action, target: Target, situation: RunSituation) -> list[str]:
    """Of the target's health, and of the batches that come again."""
    said, here = list[str](), situation.position or 0
    if target.doubt:
        said.append(f"{target.name} is {target.doubt}.")
    if isinstance(action, Rollback) and action.skip is None and here > target.position:
        read = batches_phrase(BatchRange(target.position, here))
        said.append(f"No batches are skipped: the run reads {read} again.")
    return said


# What the job's own settings allow.


def read_limits(settings: Mapping[str, str]) -> OrderLimits:
    """The limits in an attempt's settings; what is missing or cannot be read limits nothing."""
    return OrderLimits(**{f.name: _number(settings.get(f.name, "")) for f in fields(OrderLimits)})


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
            fewer = _fewer(steps, limits.lr_steps_most)
            return None if fewer is None else ScaleLr(_milder(factor, limits), fewer)
        case Apply(name, steps):
            fewer = _fewer(steps, limits.apply_steps_most)
            return None if fewer is None else Apply(name, fewer)
        case Rollback(target, step, skip, factor, steps, cap, apply):
            skip = None if skip is None else _shorter(skip, limits)
            steps = _fewer(steps or 0, limits.lr_steps_most)
            rate: tuple[float | None, int | None, float | None] = (None, None, None)
            if factor is not None and steps is not None:
                rate = (_milder(factor, limits), steps, cap)
            fewer = _fewer(action.apply_steps or 0, limits.apply_steps_most)
            apply = None if fewer is None else apply
            return Rollback(target, step, skip, *rate, apply, fewer)
    return action


def _shorter(skip: BatchRange, limits: OrderLimits) -> BatchRange | None:
    batches = _fewer(len(skip), limits.skip_batches_most)
    return None if batches is None else BatchRange(skip.first, skip.first + batches)


def _fewer(count: int, most: float | None) -> int | None:
    """`most` of them at most; None for none."""
    return (count if most is None else min(count, int(most))) or None


def _milder(factor: float, limits: OrderLimits) -> float:
    return min(1.0, max(factor, limits.lr_factor_least or 0.0))


def spent_note(action: Action, situation: RunSituation) -> str | None:
    """Why the job takes no more of this verb today; None if it does."""
    verb = verb_of(action)
    name = "rollbacks_a_day" if verb is Verb.ROLLBACK else "orders_a_day"
    most: float | None = getattr(situation.limits, name)
    if most is None or verb is Verb.WATCH:
        return None
    lately = sum(
        past.verb is verb and past.state in EXECUTED
        for past in situation.past
        if past.decided_s_ago is not None and past.decided_s_ago < DAY_S
    )
    if lately < most:
        return None
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
