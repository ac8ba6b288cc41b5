"""Steps that the loop's gradient scaler kept out: an overflow of fp16, which it finds its scale by.

Law: pure. One is a dropped update and nothing else: its gradients and the update that was not
made enter no baseline and open nothing; `drops` counts them, since a scaler that finds no scale is
stuck. A loss that is not finite is never one of these.
"""

from __future__ import annotations

import math
from dataclasses import replace

from spikeguard_protocol import OptionalSignal, Signal
from spikeguard_server.domain.detection.sample import Sample

GRAD_NORMS = (Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value)
_SKIPPED, _LOSS = OptionalSignal.STEP_SKIPPED.value, Signal.LOSS.value
_OF_THE_UPDATE = frozenset(
    {
        *GRAD_NORMS,
        Signal.UPDATE_NORM.value,
        Signal.UPDATE_NORM_SAMPLED.value,
        OptionalSignal.UNCHANGED_PARAMETERS.value,
    }
)


def is_overflow(sample: Sample) -> bool:
    """Whether a gradient scaler skipped the step of `sample`, whose loss is sound."""
    values = sample.values
    if not values.get(_SKIPPED, 0.0) >= 1.0 or not math.isfinite(values.get(_LOSS, 0.0)):
        return False
    return not all(math.isfinite(values.get(name, 0.0)) for name in GRAD_NORMS)


def without_update(sample: Sample) -> Sample:
    """What is left of `sample` without its gradients and its update."""
    kept = {name: value for name, value in sample.values.items() if name not in _OF_THE_UPDATE}
    return replace(sample, values=kept)
