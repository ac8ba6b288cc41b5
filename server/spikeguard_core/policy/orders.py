"""What a person orders in place of what the policy proposes, or without a proposal.

An order becomes an action that the job would carry out, or a refusal that names field, limit and
remedy; nothing of it is changed in silence. What may be ordered and still deserves a second look (a
target that is not healthy, data that comes again) is said in warnings, which are kept with the
order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from spikeguard_core.policy.order_limits import within_limits
from spikeguard_core.policy.situation import RunSituation, Target
from spikeguard_core.policy.targeting import WHY_DOUBTED
from spikeguard_protocol import (
    Action,
    Answer,
    Apply,
    BatchRange,
    Health,
    ProtocolError,
    Rollback,
    SkipBatches,
    Verb,
    from_json,
)
from spikeguard_protocol.orders import type_of_verb
from spikeguard_protocol.phrases import batches_phrase


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
    said = [] if target is None else [_health(target), _again(action, target, situation)]
    return Plan(action, (*filter(None, said), *_known(verb, situation)))


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


def _health(target: Target) -> str:
    if target.health is Health.HEALTHY:
        return ""
    if target.damage is not None:
        return f"{target.name} is damaged: {target.damage}."
    return f"{target.name} is {target.health}: {WHY_DOUBTED[target.health]}."


def _again(action: Action, target: Target, situation: RunSituation) -> str:
    skips = isinstance(action, Rollback) and action.skip is not None
    if skips or (situation.position or 0) <= target.position:
        return ""
    read = BatchRange(target.position, situation.position or 0)
    return f"No batches are skipped: the run reads {batches_phrase(read)} again."


def _known(verb: Verb, situation: RunSituation) -> tuple[str, ...]:
    """What `verb` loses in this loop, as the job says it."""
    ability = situation.ability(verb)
    if ability is None or ability.answer is not Answer.YES:
        return ()
    told = [part.rstrip(".") for part in (ability.reason, ability.cost, ability.remedy) if part]
    return (f"Of this job: {'; '.join(told)}.",) if ability.remedy or ability.cost else ()
