"""Which causes are right for an injected fault.

Law: fixed before any run was scored, by what the fault does and what is measured of it.

- data faults: the batch is bad
- lr_bump and gradient_ascent with a factor above 1: the `lr` that the step used is measured and
  was raised, so that too high a learning rate is right. Uphill at the unchanged rate nothing that
  is measured tells it from ordinary steps: `unknown` is right.
- weight_scale, weight_noise: the weights were changed by no update
- bit_flip: the same, in one weight; a fault in that layer is right too
- moment_reset, gradient_jump: the second moment is too small, for such a gradient
- nan_grad: a NaN was computed
"""

from __future__ import annotations

from benchmarks.naming_plan import Run
from spikeguard_protocol import Cause
from spikeguard_trainer.faults import FaultName

RIGHT: dict[FaultName, frozenset[Cause]] = {
    FaultName.BAD_BATCH: frozenset({Cause.BAD_BATCH}),
    FaultName.BAD_BATCH_REPEATED: frozenset({Cause.BAD_BATCH}),
    FaultName.BAD_BATCH_SHUFFLED: frozenset({Cause.BAD_BATCH}),
    FaultName.GRADIENT_ASCENT: frozenset({Cause.LR_TOO_HIGH}),
    FaultName.LR_BUMP: frozenset({Cause.LR_TOO_HIGH}),
    FaultName.WEIGHT_SCALE: frozenset({Cause.WEIGHT_CORRUPTION}),
    FaultName.WEIGHT_NOISE: frozenset({Cause.WEIGHT_CORRUPTION}),
    FaultName.MOMENT_RESET: frozenset({Cause.STALE_SECOND_MOMENT}),
    FaultName.GRADIENT_JUMP: frozenset({Cause.STALE_SECOND_MOMENT}),
    FaultName.BIT_FLIP: frozenset({Cause.WEIGHT_CORRUPTION, Cause.LAYER_FAULT}),
    FaultName.NAN_GRAD: frozenset({Cause.NON_FINITE_SOURCE}),
}


def right_causes(run: Run) -> frozenset[Cause]:
    """The causes that count as right for `run`."""
    fault = run.fault
    if fault.name is FaultName.GRADIENT_ASCENT and fault.strength <= 1.0:
        return frozenset({Cause.UNKNOWN})
    return RIGHT[fault.name]
