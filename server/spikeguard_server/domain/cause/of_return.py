"""Clues in what happened after the run went back.

Law: pure. What hangs on batch positions comes again with them; what happened once does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from spikeguard_protocol import Cause
from spikeguard_server.domain.cause.suspicion import Clue
from spikeguard_server.domain.evidence import Evidence


def clues_of_return(evidence: Evidence) -> Iterator[Clue]:
    """Whether it came back, and whether with the same data."""
    step, then, now = evidence.again_step, evidence.onset_batches, evidence.again_batches
    if step is not None and then is not None and now is not None:
        if then.first < now.end and now.first < then.end:
            reason = f"after going back it came again at step {step} with the same batches {now}"
            yield Clue(Cause.BAD_BATCH, 5.0, reason)
            return
        reason = f"after going back it came again at step {step} with other batches, {now}"
        yield Clue(Cause.BAD_BATCH, -3.0)
        yield Clue(Cause.LR_TOO_HIGH, 2.5, reason)
    elif evidence.passed:
        reason = f"after going back batches {then} were trained on again and nothing stood out"
        yield Clue(Cause.BAD_BATCH, -4.0)
        yield Clue(Cause.WEIGHT_CORRUPTION, 1.0, reason)
