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
        batches = evidence.onset_batches
        were = "was" if batches is not None and len(batches) == 1 else "were"
        those = f"{batches_phrase(batches)} {were}"
        reason = f"after going back {those} trained on again and nothing stood out"
        yield Clue(Cause.BAD_BATCH, -4.0, reason)
        yield Clue(Cause.WEIGHT_CORRUPTION, 1.0, reason)


def same_batches(then: BatchRange, now: BatchRange) -> bool:
    """Whether `now` lies among those of a first rise, as exactly as an onset can be placed: at a
    lowered rate the same batches take longer to show."""
    near = NEAR_BATCHES * len(now)
    return then.first < now.end + near and now.first < then.end + near


def _again(
    evidence: Evidence, step: int, began: int, then: BatchRange, now: BatchRange
) -> Iterator[Clue]:
    """At its own step it may hang on the step (a schedule, a node) as well as on the batches."""
    behind, at_its_step = evidence.again_behind, abs(step - began) <= NEAR_STEPS
    came, batches = f"after going back it came again at step {step} with", batches_phrase(now)
    too = ", at the same step" if at_its_step else ""
    longest = max(0 if behind is None else len(behind), NEAR_BATCHES * len(now))
    if behind is not None and 0 <= now.first - behind.end <= longest:
        # A longer stretch of bad data would have come back there.
        yield Clue(Cause.BAD_BATCH, 3.0, f"{came} {batches}, right behind those left out{too}")
    elif behind is None and same_batches(then, now):
        data = f"{batches}, where it had risen over {batches_phrase(then)}"
        if now.first == then.first:
            data = f"the same data, {batches}"
        yield Clue(Cause.BAD_BATCH, 2.0 if at_its_step else 5.0, f"{came} {data}{too}")
    elif at_its_step:
        reason = f"{came} other data, {batches}"
        yield Clue(Cause.BAD_BATCH, -3.0, reason)
        yield Clue(Cause.LR_TOO_HIGH, 2.5, reason)
