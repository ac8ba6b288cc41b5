"""Clues in what no loss shows: an fp16 loss scale that overflows, bf16 weights that stand still."""

from __future__ import annotations

import math
from collections.abc import Iterator

from spikeguard_core.detection.noise import median
from spikeguard_core.diagnosis.cause.measured import calm_values
from spikeguard_core.diagnosis.evidence import (
    STEP_SKIPPED,
    UNCHANGED_PARAMETERS,
    Evidence,
)
from spikeguard_core.diagnosis.silent_failures import LIMIT
from spikeguard_core.suspicion import Clue, Mark
from spikeguard_protocol import Cause, Signal

FEWEST = 3  # steps skipped in a row that are no search for a scale any more


def clues_of_precision(evidence: Evidence) -> Iterator[Clue]:
    """Whether a scaler found no scale, or updates rounded to nothing."""
    yield from _overflow(evidence)
    yield from _stalled(evidence)


def _overflow(evidence: Evidence) -> Iterator[Clue]:
    rows = [r for r in evidence.whole(STEP_SKIPPED).rows() if r[0] >= evidence.onset_step]
    skipped = [step for step, value in rows if value >= 1.0]
    if len(skipped) < FEWEST or len(skipped) < len(rows):
        return
    # Where a step that was made reports nothing of this signal, its loss tells that it was made.
    losses = [r for r in evidence.whole(Signal.LOSS.value).rows() if r[0] >= evidence.onset_step]
    from_here = [step for step, _ in losses if step >= skipped[0]]
    if losses and (not from_here or not {*from_here} <= {*skipped}):
        return
    if not all(math.isfinite(loss) for step, loss in losses if step in skipped):
        return
    reason = (
        f"the gradient scaler skipped each of the {len(skipped)} steps known from step "
        f"{skipped[0]} on, while the loss was finite: no loss scale fits"
    )
    yield Clue(Cause.LOSS_SCALE_OVERFLOW, 11.0, reason, Mark(skipped[0]))


def _stalled(evidence: Evidence) -> Iterator[Clue]:
    shares = calm_values(evidence, UNCHANGED_PARAMETERS)
    if not shares or not LIMIT <= median(shares) <= 1.0:
        return
    reason = (
        f"steps before the onset left {median(shares):.1%} of the parameters as they were: "
        "updates round to nothing in this number format"
    )
    yield Clue(Cause.STALLED_WEIGHTS, 9.0, reason)
