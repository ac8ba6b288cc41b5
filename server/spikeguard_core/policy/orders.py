"""What a person orders in place of what the policy proposes, or without a proposal.

An order becomes an action that the job would carry out, or a refusal that names field, limit and
remedy; nothing of it is changed in silence. What may be ordered and still deserves a second look (a
target that is not healthy, data that comes again) is said in warnings, which are kept with the
order.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from spikeguard_core.policy.order_limits import within_limits
from spikeguard_core.policy.situation import RunSituation, Target
from spikeguard_core.policy.targeting import WHY_DOUBTED
from spikeguard_protocol import (
    Action,
    Answer,
    Apply,
    BatchRange,
    CheckpointNow,
    Health,
    ProtocolError,
    Rollback,
    ScaleLr,
    SkipBatches,
    Stop,
    Verb,
    Watch,
    verb_of,
)
from spikeguard_protocol.phrases import batches_phrase

_FIELDS: Final = {  # of an action, as an order calls them
    "batches": "skip", "lr_factor": "factor", "lr_steps": "steps", "lr_cap": "cap",
    "apply_steps": "steps",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """What a person asks for; what the verb does not need is left out."""

    verb: Verb
    target: str | None = None  # rollback: its name
    skip: BatchRange | None = None  # rollback: batches left out behind it; skip_batches: those
    factor: float | None = None  # rollback, scale_lr: of every learning rate
    steps: int | None = (
        None  # of the lower rate or the mitigation; watch: until the policy looks again
    )
    mitigation: str | None = None  # apply: its name; rollback: with which the run goes on
    cap: float | None = None  # rollback: the factor lowers the learning rate no further than this


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


TAKES: Final = {
    Verb.ROLLBACK: frozenset({"target", "skip", "factor", "steps", "mitigation", "cap"}),
    Verb.SKIP_BATCHES: frozenset({"skip"}),
    Verb.SCALE_LR: frozenset({"factor", "steps"}),
    Verb.APPLY: frozenset({"mitigation", "steps"}),
    Verb.WATCH: frozenset({"steps"}),
    Verb.CHECKPOINT_NOW: frozenset[str](),
    Verb.STOP: frozenset[str](),
}


def order_request_of(action: Action) -> OrderRequest:
    """The order that `action`, a policy's proposal, answers: what whoever edits it begins with."""
    match action:
        case Rollback(target, _, skip, factor, steps):
            steps = steps or action.apply_steps
            mitigation, cap = action.apply, action.lr_cap
            return OrderRequest(Verb.ROLLBACK, target, skip, factor, steps, mitigation, cap)
        case ScaleLr(factor, steps):
            return OrderRequest(Verb.SCALE_LR, factor=factor, steps=steps)
        case Watch(steps):
            return OrderRequest(Verb.WATCH, steps=steps)
    return OrderRequest(verb_of(action))


def plan_of(wanted: OrderRequest, situation: RunSituation) -> Plan:
    """The action that `wanted` asks for, as the job would take it; raise `Refusal`."""
    if (refusal := why_not(wanted.verb, situation)) is not None:
        raise refusal
    _check_shape(wanted, situation)
    target = _target(wanted, situation)
    try:
        action = _action(wanted, target)
    except ProtocolError as error:
        field = _FIELDS.get(error.field, error.field)
        raise Refusal(field, f"{field} {error.limit}", error.remedy) from None
    kept, note = within_limits(action, situation)
    if kept != action:
        names = [one.name for one in fields(action) if kept is not None]
        changed = [name for name in names if getattr(kept, name) != getattr(action, name)]
        field = _FIELDS.get(changed[0], changed[0]) if changed else "verb"
        raise Refusal(field, note.strip().rstrip("."), "Order less, or raise the job's limit")
    said = [_health(target), _again(target, wanted.skip, situation)] if target else []
    return Plan(action, (*filter(None, said), *_known(wanted.verb, situation)))


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


def _check_shape(wanted: OrderRequest, situation: RunSituation) -> None:
    """What is given has to be what the verb takes, and still possible."""
    given = {f.name for f in fields(wanted) if getattr(wanted, f.name) is not None} - {"verb"}
    if over := sorted(given - TAKES[wanted.verb]):
        raise Refusal(over[0], f"{wanted.verb} takes no {over[0]}", "Leave it out")
    needed = {"target"} if wanted.verb is Verb.ROLLBACK else TAKES[wanted.verb]
    if missing := sorted(needed - given):
        said = f"{wanted.verb} needs {' and '.join(missing)}"
        raise Refusal(missing[0], said, "Give what is missing")
    timed = wanted.factor is not None or wanted.mitigation is not None
    if timed != (wanted.steps is not None) and wanted.verb is Verb.ROLLBACK:
        lacks = "steps" if wanted.steps is None else "factor"
        said = "factor and steps go together, and so do mitigation and steps"
        raise Refusal(lacks, said, "Give both or neither")
    name = wanted.mitigation
    if name is not None and (name not in situation.mitigations or not situation.can(Verb.APPLY)):
        known = ", ".join(situation.mitigations) or "it has none"
        said = f"The job has registered no mitigation {name!r}"
        raise Refusal("mitigation", said, f"Choose one that it has: {known}")
    skip, here = wanted.skip, situation.position
    if wanted.verb is Verb.SKIP_BATCHES and skip is not None and skip.first < (here or 0):
        said = f"Batch {skip.first:,} was read already: the run stands at batch {here:,}"
        raise Refusal("skip", said, "Skip batches that come later, or roll back and skip")


def _target(wanted: OrderRequest, situation: RunSituation) -> Target | None:
    """The target of a rollback; None for any other order."""
    if wanted.target is None:
        return None
    target = next((t for t in situation.targets if t.name == wanted.target), None)
    if target is None:
        raise Refusal(
            "target",
            f"The run has no target {wanted.target!r} to go back to: it never had, it is deleted, "
            "or it lies on a branch that was given up",
            "Choose one that `GET /v1/runs/{project}/{name}/options` or the page lists",
        )
    if out_of_reach(target, situation):
        raise Refusal(
            "target",
            f"{target.name} lies {situation.step - target.step:,} steps back; the job gives up at "
            f"most {situation.limits.rollback_steps_most:,.0f} (its setting rollback_steps_most)",
            "Choose a newer target",
        )
    if wanted.skip is not None and wanted.skip.first < target.position:
        raise Refusal(
            "skip",
            f"{target.name} has read all batches before {target.position:,}, so that "
            f"{batches_phrase(wanted.skip)} cannot be left out behind it",
            f"Begin at {target.position:,} or later, or take an older target",
        )
    return target


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


def _again(target: Target, skip: BatchRange | None, situation: RunSituation) -> str:
    if skip is not None or (situation.position or 0) <= target.position:
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


def _action(wanted: OrderRequest, target: Target | None) -> Action:
    """Raise `ProtocolError` for a number that no job takes."""
    factor, steps, mitigation = wanted.factor, wanted.steps, wanted.mitigation
    if target is not None:
        return Rollback(
            target.name, target.step, wanted.skip, factor, None if factor is None else steps,
            wanted.cap, mitigation, None if mitigation is None else steps,
        )  # fmt: skip
    match wanted.verb:
        case Verb.SKIP_BATCHES if wanted.skip is not None:
            return SkipBatches(wanted.skip)
        case Verb.SCALE_LR if factor is not None and steps is not None:
            return ScaleLr(factor, steps)
        case Verb.APPLY if mitigation is not None and steps is not None:
            return Apply(mitigation, steps)
        case Verb.WATCH if steps is not None:
            return Watch(steps)
        case Verb.CHECKPOINT_NOW:
            return CheckpointNow()
    return Stop()
