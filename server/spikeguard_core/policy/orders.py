"""What a person orders in place of what the policy proposes, or without a proposal.

Law: pure. An order becomes an action that the job would carry out, or a refusal that names field,
limit and remedy; nothing of it is changed in silence. What may be ordered and still deserves a
second look (a target that is not healthy, data that comes again) is said in warnings, which are
kept with the order.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from spikeguard_core.policy.order_limits import spent_note
from spikeguard_core.policy.situation import OrderLimits, RunSituation, Target
from spikeguard_protocol import (
    Action,
    Answer,
    Apply,
    BatchRange,
    CheckpointNow,
    Health,
    Rollback,
    ScaleLr,
    SkipBatches,
    Stop,
    Verb,
    Watch,
    verb_of,
)
from spikeguard_protocol.phrases import batches_phrase

LONGEST_STEPS: Final = 100_000  # of a lower learning rate, or of watching; the job may take fewer
LONGEST_SKIP: Final = 100_000  # batches


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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why it cannot be ordered, and what to do instead."""

    field: str
    message: str
    remedy: str


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


def plan_of(wanted: OrderRequest, situation: RunSituation) -> Plan | Refusal:
    """The action that `wanted` asks for, as the job would take it."""
    refusal = (
        why_not(wanted.verb, situation)
        or _shape(wanted)
        or _rate(wanted, situation.limits)
        or _registered(wanted, situation)
        or _skip(wanted, situation)
    )
    if refusal is not None:
        return refusal
    if wanted.verb is Verb.ROLLBACK:
        return _back(wanted, situation)
    action = _action(wanted)
    return _spent(action, situation) or Plan(action, _known(wanted.verb, situation))


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


def _shape(wanted: OrderRequest) -> Refusal | None:
    """What is given has to be what the verb takes."""
    given = {f.name for f in fields(wanted) if getattr(wanted, f.name) is not None} - {"verb"}
    if over := sorted(given - TAKES[wanted.verb]):
        return Refusal(over[0], f"{wanted.verb} takes no {over[0]}", "Leave it out")
    needed = {"target"} if wanted.verb is Verb.ROLLBACK else TAKES[wanted.verb]
    if missing := sorted(needed - given):
        return Refusal(
            missing[0], f"{wanted.verb} needs {' and '.join(missing)}", "Give what is missing"
        )
    timed = wanted.factor is not None or wanted.mitigation is not None
    if timed != (wanted.steps is not None) and wanted.verb is Verb.ROLLBACK:
        lacks = "steps" if wanted.steps is None else "factor"
        said = "factor and steps go together, and so do mitigation and steps"
        return Refusal(lacks, said, "Give both or neither")
    return None


def _registered(wanted: OrderRequest, situation: RunSituation) -> Refusal | None:
    name, most = wanted.mitigation, situation.limits.apply_steps_most
    if name is None:
        return None
    if name not in situation.mitigations or not situation.can(Verb.APPLY):
        known = ", ".join(situation.mitigations) or "it has none"
        said = f"The job has registered no mitigation {name!r}"
        return Refusal("mitigation", said, f"Choose one that it has: {known}")
    if most is not None and (wanted.steps or 0) > most:
        limit = f"steps is at most {most:,.0f} (the job's setting apply_steps_most)"
        return Refusal("steps", limit, "Give fewer")
    return None


def _rate(wanted: OrderRequest, limits: OrderLimits) -> Refusal | None:
    factor, steps = wanted.factor, wanted.steps
    least = limits.lr_factor_least or 0.0
    if wanted.cap is not None and (factor is None or wanted.cap <= 0.0):
        return Refusal("cap", "cap is a learning rate above 0, and goes with factor", "Give both")
    if factor is not None and not (0.0 < factor <= 1.0 and factor >= least):
        return Refusal(
            "factor",
            f"A learning rate is multiplied by {least:g} to 1, not by {factor:g}",
            "The job's setting lr_factor_least says how low" if least else "Give a smaller cut",
        )
    most = LONGEST_STEPS
    if wanted.factor is not None and limits.lr_steps_most is not None:
        most = min(most, int(limits.lr_steps_most))
    if steps is not None and not 1 <= steps <= most:
        told = " (the job's setting lr_steps_most)" if most < LONGEST_STEPS else ""
        return Refusal("steps", f"steps lies in 1 to {most:,}{told}, not {steps:,}", "Give fewer")
    return None


def _skip(wanted: OrderRequest, situation: RunSituation) -> Refusal | None:
    if wanted.skip is None:
        return None
    limit = situation.limits.skip_batches_most
    most = LONGEST_SKIP if limit is None else min(LONGEST_SKIP, int(limit))
    if len(wanted.skip) > most:
        told = "" if limit is None else " (its setting skip_batches_most)"
        return Refusal(
            "skip",
            f"The job skips at most {most:,} batches by one order{told}, not "
            f"{batches_phrase(wanted.skip)}",
            "Give fewer",
        )
    here = situation.position
    if wanted.verb is Verb.SKIP_BATCHES and here is not None and wanted.skip.first < here:
        return Refusal(
            "skip",
            f"Batch {wanted.skip.first:,} was read already: the run stands at batch {here:,}",
            "Skip batches that come later, or roll back and skip",
        )
    return None


def _back(wanted: OrderRequest, situation: RunSituation) -> Plan | Refusal:
    assert wanted.target is not None
    target = next((t for t in situation.targets if t.name == wanted.target), None)
    if target is None:
        return Refusal(
            "target",
            f"The run has no target {wanted.target!r} to go back to: it never had, it is deleted, "
            "or it lies on a branch that was given up",
            "Choose one that `GET /v1/runs/{project}/{name}/options` or the page lists",
        )
    return _too_far(target, situation) or _back_to(target, wanted, situation)


def _back_to(target: Target, wanted: OrderRequest, situation: RunSituation) -> Plan | Refusal:
    skip = wanted.skip
    if skip is not None and skip.first < target.position:
        return Refusal(
            "skip",
            f"{target.name} has read all batches before {target.position:,}, so that "
            f"{batches_phrase(skip)} cannot be left out behind it",
            f"Begin at {target.position:,} or later, or take an older target",
        )
    factor, name = wanted.factor, wanted.mitigation
    action = Rollback(
        target.name, target.step, skip, factor, None if factor is None else wanted.steps,
        wanted.cap, name, None if name is None else wanted.steps,
    )  # fmt: skip
    said = (_health(target), _again(target, skip, situation), *_known(Verb.ROLLBACK, situation))
    return _spent(action, situation) or Plan(action, tuple(text for text in said if text))


def out_of_reach(target: Target, situation: RunSituation) -> bool:
    """Whether it lies further back than the job goes."""
    most = situation.limits.rollback_steps_most
    return most is not None and situation.step - target.step > most


def _too_far(target: Target, situation: RunSituation) -> Refusal | None:
    if not out_of_reach(target, situation):
        return None
    return Refusal(
        "target",
        f"{target.name} lies {situation.step - target.step:,} steps back; the job gives up at most "
        f"{situation.limits.rollback_steps_most:,.0f} (its setting rollback_steps_most)",
        "Choose a newer target",
    )


def _health(target: Target) -> str:
    if target.health is Health.HEALTHY:
        return ""
    if target.damage is not None:
        return f"{target.name} is damaged: {target.damage}."
    why = {
        Health.PENDING: "too few calm steps followed it to know that it is good",
        Health.SUSPECT: "it was taken during a spike, or on a branch that was given up",
    }[target.health]
    return f"{target.name} is {target.health}: {why}."


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


def _spent(action: Action, situation: RunSituation) -> Refusal | None:
    note = spent_note(action, situation)
    if note is None:
        return None
    return Refusal("verb", note.strip().rstrip("."), "Do it in the job itself, or raise its limit")


def _action(wanted: OrderRequest) -> Action:
    match wanted.verb:
        case Verb.SKIP_BATCHES if wanted.skip is not None:
            return SkipBatches(wanted.skip)
        case Verb.SCALE_LR if wanted.factor is not None and wanted.steps is not None:
            return ScaleLr(wanted.factor, wanted.steps)
        case Verb.APPLY if wanted.mitigation is not None and wanted.steps is not None:
            return Apply(wanted.mitigation, wanted.steps)
        case Verb.WATCH if wanted.steps is not None:
            return Watch(wanted.steps)
        case Verb.CHECKPOINT_NOW:
            return CheckpointNow()
    return Stop()
