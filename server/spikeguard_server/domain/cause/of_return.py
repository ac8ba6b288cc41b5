"""Clues in what happened after the run went back.

Law: pure. What hangs on batch positions comes again with them; what happened once does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from spikeguard_protocol import BatchRange, Cause
from spikeguard_server.domain.cause.suspicion import Clue
from spikeguard_server.domain.evidence import Evidence

NEAR_STEPS = 2  # of the onset's step: detection may see the same spike so much later


def clues_of_return(evidence: Evidence) -> Iterator[Clue]:
    """Whether it came back, and whether with the same data."""
    step, then, now = evidence.again_step, evidence.onset_batches, evidence.again_batches
    if step is not None and then is not None and now is not None:
        if then.first < now.end and now.first < then.end:
            yield _with_the_same(step, now, evidence)
            return
        reason = f"after going back it came again at step {step} with other batches, {now}"
        yield Clue(Cause.BAD_BATCH, -3.0)
        yield Clue(Cause.LR_TOO_HIGH, 2.5, reason)
    elif evidence.passed:
        reason = f"after going back batches {then} were trained on again and nothing stood out"
        yield Clue(Cause.BAD_BATCH, -4.0)
        yield Clue(Cause.WEIGHT_CORRUPTION, 1.0, reason)


def _with_the_same(step: int, now: BatchRange, evidence: Evidence) -> Clue:
    """At its own step it may hang on the step (a schedule, a node) as well as on the batches."""
    reason = f"after going back it came again at step {step} with the same batches {now}"
    if abs(step - evidence.onset_step) > NEAR_STEPS:
        return Clue(Cause.BAD_BATCH, 5.0, reason)
    return Clue(Cause.BAD_BATCH, 2.0, f"{reason}, at the same step")
