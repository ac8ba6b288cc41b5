"""Clues in what happened after a rollback.

What hangs on batch positions comes again with them, what hangs on the step at its step; what
happened once does not. What came back at neither says nothing of the first: its own rows tell.
"""

from __future__ import annotations

from collections.abc import Iterator

from spikeguard_core.diagnosis.evidence import Evidence
from spikeguard_core.suspicion import Clue
from spikeguard_protocol import BatchRange, Cause
from spikeguard_protocol.phrases import batches_phrase

NEAR_STEPS = 2  # of the onset's step: detection may see the same spike so much later
NEAR_BATCHES = 2  # steps' batches behind those left out, or beside those of the onset


def clues_of_return(evidence: Evidence) -> Iterator[Clue]:
    """Whether it came back, and whether with the same data."""
    began, then, now = evidence.first_step, evidence.first_batches, evidence.again_batches
    if evidence.again_step is not None:
        if began is not None and then is not None and now is not None:
            yield from _again(evidence, evidence.again_step, began, then, now)
    elif evidence.passed:
        reason = f"{_those(evidence.onset_batches)} trained on again and nothing stood out"
        yield Clue(Cause.BAD_BATCH, -4.0, reason)
        yield Clue(Cause.WEIGHT_CORRUPTION, 1.0, reason)


def _those(batches: BatchRange | None) -> str:
    were = "was" if batches is not None and len(batches) == 1 else "were"
    return f"after going back {batches_phrase(batches)} {were}"


def same_batches(then: BatchRange, now: BatchRange) -> bool:
    """Whether `now` lies among those of a first rise, as exactly as an onset can be placed: at a
    lowered rate the same batches take longer to show."""
    near = NEAR_BATCHES * len(now)
    return then.first < now.end + near and now.first < then.end + near


def _again(
    evidence: Evidence, step: int, began: int, then: BatchRange, now: BatchRange
) -> Iterator[Clue]:
    behind = evidence.again_behind
    if behind is not None and _right_behind(behind, now):
        reason = (
            f"after going back it came again at step {step} with {batches_phrase(now)}, right "
            "behind those left out"
        )
        if abs(step - began) <= NEAR_STEPS:
            reason += ", at the same step"
        yield Clue(Cause.BAD_BATCH, 3.0, reason)
    elif behind is None and same_batches(then, now):
        yield _with_the_same(step, now, began, then)
    elif abs(step - began) <= NEAR_STEPS:
        reason = (
            f"after going back it came again at step {step} with other data, {batches_phrase(now)}"
        )
        yield Clue(Cause.BAD_BATCH, -3.0, reason)
        yield Clue(Cause.LR_TOO_HIGH, 2.5, reason)


def _right_behind(left_out: BatchRange, now: BatchRange) -> bool:
    """Whether a longer stretch of bad data would have come back there."""
    return 0 <= now.first - left_out.end <= max(len(left_out), NEAR_BATCHES * len(now))


def _with_the_same(step: int, now: BatchRange, began: int, then: BatchRange) -> Clue:
    """At its own step it may hang on the step (a schedule, a node) as well as on the batches."""
    same = now.first == then.first
    data = f"the same data, {batches_phrase(now)}"
    if not same:
        data = f"{batches_phrase(now)}, where it had risen over {batches_phrase(then)}"
    reason = f"after going back it came again at step {step} with {data}"
    if abs(step - began) > NEAR_STEPS:
        return Clue(Cause.BAD_BATCH, 5.0, reason)
    return Clue(Cause.BAD_BATCH, 2.0, f"{reason}, at the same step")
