"""Commands, batches, causes and reasons as a person reads them: the same phrase in every message,
page, terminal and post-mortem.

Batches are said from the first to the last of them, never half-open. The paragraphs of a reason are
kept apart by `PARAGRAPH`, which no part of it can bring in from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from spikeguard_protocol.identity import BatchRange, stretch_phrase
from spikeguard_protocol.orders import Action, verb_of
from spikeguard_protocol.vocabulary import Cause, ResponseAction, Verb

TIMES = "\N{MULTIPLICATION SIGN}"
PARAGRAPH = "\n\n"

CAUSE_WORDS: Mapping[Cause, str] = {
    Cause.BAD_BATCH: "bad data",
    Cause.RARE_TOKENS: "tokens hardly seen before",
    Cause.STALE_SECOND_MOMENT: "Adam's second moment too small",
    Cause.LR_TOO_HIGH: "learning rate too high",
    Cause.LAYER_FAULT: "numeric fault in one layer",
    Cause.NON_FINITE_SOURCE: "a value that is not finite",
    Cause.WEIGHT_CORRUPTION: "weights changed by no update",
    Cause.LOSS_SCALE_OVERFLOW: "no fp16 loss scale fits",
    Cause.STALLED_WEIGHTS: "updates that round to nothing",
    Cause.REPLICAS_APART: "ranks that hold different weights",
    Cause.UNKNOWN: "not known",
}


def order_phrase(verb: str, arguments: Mapping[str, Any], *, brief: bool = False) -> str:
    """`roll back to step 300 (step-300), skip batches 310 to 329 (20)`; `brief` names no target."""
    known = verb in set(Verb)
    return _PHRASES[Verb(verb)](arguments, brief) if known else verb.replace("_", " ")


def action_phrase(action: Action, *, brief: bool = False) -> str:
    """The same of an action."""
    return order_phrase(verb_of(action), asdict(action), brief=brief)


def times_phrase(count: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def duration_phrase(seconds: float | None) -> str:
    """`0.4 s`, `42 s`, `3.5 min`, `2.1 h`, `4.0 d`; a dash where it is not known."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if 0.0 < seconds < 10.0 else f"{seconds:.0f} s"


def batches_phrase(batches: object) -> str:
    """`batch 240`, `batches 239 to 244 (6)`, of `[first, end)` in any form that it travels in."""
    ends = _ends(batches)
    if ends is None:
        return "batches that are not known"
    return stretch_phrase(ends[0], ends[1] - 1)


def sure_phrase(confidence: float) -> str:
    """How sure something is, in whole percent: never certain where it is not, as `>99%`, `<1%`."""
    if 0.995 <= confidence < 1.0:
        return ">99%"
    return "<1%" if 0.0 < confidence < 0.005 else f"{confidence:.0%}"


def cause_phrase(cause: str) -> str:
    """What a cause is called; one of a newer server as it stands."""
    return CAUSE_WORDS[Cause(cause)] if cause in set(Cause) else cause.replace("_", " ")


def in_paragraphs(*parts: str) -> str:
    """A reason of those `parts` that say something, each a paragraph of its own."""
    return PARAGRAPH.join(filter(None, map(" ".join, map(str.split, parts))))


def paragraphs(reason: str) -> list[str]:
    """What `in_paragraphs` put together."""
    return list(filter(None, map(str.strip, reason.split(PARAGRAPH))))


def ended_phrase(state_words: str, because: str | None) -> str:
    """How a command ended and why, as sentences: `Withdrawn. It healed.`; nothing is said twice."""
    why = (because or "").strip().rstrip(".")
    said = (state_words, "" if why.lower() in state_words.lower() else why)
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in said if part)


def response_phrase(action: str, person: str, assignee: str | None, text: str | None) -> str:
    """What a person did about an incident: `acknowledged by Ada`, `assigned to Bob by Ada`."""
    match action:
        case ResponseAction.UNACKNOWLEDGED:
            return f"{person} no longer looks at it"
        case ResponseAction.ASSIGNED if assignee != person:
            return f"assigned to {assignee} by {person}"
        case ResponseAction.ASSIGNED:
            return f"taken by {person}"
        case ResponseAction.UNASSIGNED:
            return (
                f"taken from {assignee} by {person}" if assignee != person else f"left by {person}"
            )
        case ResponseAction.COMMENTED:
            return f"{person}: {text}"
    return f"{action.replace('_', ' ')} by {person}"


def _ends(batches: object) -> tuple[int, int] | None:
    match batches:
        case BatchRange(first, end):
            return first, end
        case {"first": int(first), "end": int(end)}:
            return first, end
        case [int(first), int(end)]:
            return first, end
    return None


def _rollback(given: Mapping[str, Any], brief: bool) -> str:
    named = "" if brief or not given.get("target") else f" ({given['target']})"
    words = f"roll back to step {_count(given.get('step'))}{named}"
    if given.get("skip") is not None:
        words += f", skip {batches_phrase(given['skip'])}"
    if given.get("apply") is not None:
        words += f", with {given['apply']} for {_steps(given.get('apply_steps'))}"
    if given.get("lr_factor") is not None:
        words += f", {_lower_rate(given['lr_factor'], given.get('lr_steps'), given.get('lr_cap'))}"
    return words


def _lower_rate(factor: object, steps: object, cap: object = None) -> str:
    share = f"{factor:.3g}" if isinstance(factor, int | float) else "less"
    if isinstance(cap, int | float):
        most = f"learning rate at most {cap:.3g} (no lower than {TIMES} {share} of the schedule)"
        return f"{most} for {_steps(steps)}, then back"
    return f"learning rate {TIMES} {share} for {_steps(steps)}, then back"


def _steps(steps: object) -> str:
    return "1 step" if steps == 1 else f"{_count(steps)} steps"


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"


_PHRASES: Mapping[Verb, Callable[[Mapping[str, Any], bool], str]] = {
    Verb.ROLLBACK: _rollback,
    Verb.SKIP_BATCHES: lambda given, _: f"skip {batches_phrase(given.get('batches'))}",
    Verb.SCALE_LR: lambda given, _: _lower_rate(given.get("factor"), given.get("steps")),
    Verb.APPLY: lambda given, _: f"apply {given.get('name')} for {_steps(given.get('steps'))}",
    Verb.CHECKPOINT_NOW: lambda *_: "save a checkpoint at the next step",
    Verb.WATCH: lambda given, _: f"do nothing, look again after {_steps(given.get('steps'))}",
    Verb.STOP: lambda *_: "stop the attempt on all ranks",
}


def beginning_of(text: str, most: int) -> str:
    """`text` where it has `most` characters at most, else its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
