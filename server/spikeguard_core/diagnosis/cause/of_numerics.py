"""Clues in the numerics: the first value that was not finite, an fp16 loss scale that overflows,
bf16 weights that stand still.

Within a step the loss comes first, then its gradients, then the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from spikeguard_core.detection.noise import median
from spikeguard_core.detection.own_signals import MOST_UNCHANGED
from spikeguard_core.diagnosis.cause.measured import GRAD_NORMS, LEAD, calm_values, excesses
from spikeguard_core.diagnosis.evidence import (
    STEP_SKIPPED,
    UNCHANGED_PARAMETERS,
    Evidence,
)
from spikeguard_core.suspicion import Clue, Mark
from spikeguard_protocol import Cause, Signal

LOSS, WEIGHTS = Signal.LOSS.value, Signal.PARAM_NORM.value
ORDER = (LOSS, *GRAD_NORMS, Signal.ADAM_V_NORM.value, WEIGHTS)  # in which a step computes them
OFF = 6.0  # scales of the loss from which what is not finite is a consequence
FEWEST = 3  # steps skipped in a row that are no search for a scale any more


def clues_of_non_finite(evidence: Evidence) -> Iterator[Clue]:
    """Which signal was the first that was not finite, and whether the loss was off before."""
    near = evidence.onset_step - LEAD
    firsts = {
        name: step
        for name in ORDER
        for step, value in reversed(evidence.whole(name).rows())  # so that the first is kept
        if step >= near and not math.isfinite(value)
    }
    if not firsts:
        yield Clue(Cause.NON_FINITE_SOURCE, -4.0, "every value was finite")
        return
    step = min(firsts.values())
    name = next(name for name in ORDER if firsts.get(name) == step)
    word = name.replace("_", " ")
    weights = firsts.get(WEIGHTS)
    if weights is not None and _finite_gradients(evidence, weights):
        reason = (
            f"the norm of the weights was not finite at step {weights}, while every gradient "
            "up to it was finite"
        )
        yield Clue(Cause.WEIGHT_CORRUPTION, 8.0, reason)
    elif any(height >= OFF and at < step for at, height in excesses(evidence)):
        reason = f"{word} was not finite from step {step} on, after the loss had left its trend"
        yield Clue(Cause.NON_FINITE_SOURCE, -2.0, reason)
    else:
        yield Clue(Cause.NON_FINITE_SOURCE, 6.0, _source(evidence, name, word, step))


def _source(evidence: Evidence, name: str, word: str, step: int) -> str:
    reason = f"{word} was the first that was not finite, at step {step}"
    loss = evidence.whole(LOSS).at(step)
    if name in GRAD_NORMS and loss:  # exactly 0 is how some tools log a loss that is not finite
        return f"{reason}, where the loss was still {loss:.4g}: it came from the backward pass"
    return reason


def _finite_gradients(evidence: Evidence, last: int) -> bool:
    """Whether every gradient up to step `last` was, and that step's was measured."""
    rows = [row for name in GRAD_NORMS for row in evidence.whole(name).rows() if row[0] <= last]
    return any(step == last for step, _ in rows) and all(math.isfinite(v) for _, v in rows)


def clues_of_overflow(evidence: Evidence) -> Iterator[Clue]:
    """Whether a scaler found no scale."""
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


def clues_of_rounding(evidence: Evidence) -> Iterator[Clue]:
    """Whether updates rounded to nothing."""
    shares = calm_values(evidence, UNCHANGED_PARAMETERS)
    if not shares or not MOST_UNCHANGED <= median(shares) <= 1.0:
        return
    reason = (
        f"steps before the onset left {median(shares):.1%} of the parameters as they were: "
        "updates round to nothing in this number format"
    )
    yield Clue(Cause.STALLED_WEIGHTS, 9.0, reason)
