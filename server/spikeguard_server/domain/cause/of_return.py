"""Clues in what happened after the run went back.

Law: pure. What hangs on batch positions comes again with them; what happened once does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from spikeguard_protocol import BatchRange, Cause
from spikeguard_server.domain.cause.suspicion import Clue
from spikeguard_server.domain.evidence import Evidence

NEAR_STEPS = 2  # of the onset's step: detection may see the same spike so much later
NEAR_BATCHES = 2  # steps' batches behind those left out


def clues_of_return(evidence: Evidence) -> Iterator[Clue]:
    """Whether it came back, and whether with the same data."""
    step, now = evidence.again_step, evidence.again_batches
    began, then = _beginning(evidence)
    if step is not None and then is not None and now is not None:
        if then.first < now.end and now.first < then.end:
            yield _with_the_same(step, now, began)
            return
        behind = evidence.again_behind
        if behind is not None and _right_behind(behind, now):
            reason = (
                f"after going back it came again at step {step} with batches {now}, right behind "
                f"those left out from {behind.first} to {behind.end}"
            )
            yield Clue(Cause.BAD_BATCH, 3.0, reason)
            return
        reason = f"after going back it came again at step {step} with other batches, {now}"
        yield Clue(Cause.BAD_BATCH, -3.0)
        yield Clue(Cause.LR_TOO_HIGH, 2.5, reason)
    elif evidence.passed:
        reason = f"after going back batches {then} were trained on again and nothing stood out"
        yield Clue(Cause.BAD_BATCH, -4.0)
        yield Clue(Cause.WEIGHT_CORRUPTION, 1.0, reason)


def _beginning(evidence: Evidence) -> tuple[int, BatchRange | None]:
    """Step and batches with which the incident began, before it came back."""
    if evidence.first_step is None:
        return evidence.onset_step, evidence.onset_batches
    return evidence.first_step, evidence.first_batches


def _right_behind(left_out: BatchRange, now: BatchRange) -> bool:
    """Whether a longer stretch of bad data would have come back there."""
    return 0 <= now.first - left_out.end <= max(len(left_out), NEAR_BATCHES * len(now))


def _with_the_same(step: int, now: BatchRange, began: int) -> Clue:
    """At its own step it may hang on the step (a schedule, a node) as well as on the batches."""
    reason = f"after going back it came again at step {step} with the same batches {now}"
    if abs(step - began) > NEAR_STEPS:
        return Clue(Cause.BAD_BATCH, 5.0, reason)
    return Clue(Cause.BAD_BATCH, 2.0, f"{reason}, at the same step")
