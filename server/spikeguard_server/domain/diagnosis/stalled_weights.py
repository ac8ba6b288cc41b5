"""Training that stops because updates round to nothing, as it does in pure bf16.

Law: judged against a limit, not against what was usual: the share of parameters that a step leaves
as they were creeps up with a falling learning rate, and a baseline would creep along.

The limit is measured (`python -m benchmarks.standstill --seeds 1 2`): 133,440 bf16 parameters after
500 steps, trained on for 120 at a fixed rate, beside the same weights in fp32. The validation loss
fell by this part of what it fell by in fp32, at this share unchanged: 0.95 at 0.62, 0.84 at 0.78,
0.58 at 0.89, 0.21 at 0.96, 0.06 at 0.98, 0.01 at 0.995. In fp32 the share stayed at 0.25 at any
rate: rows of the embedding that did not occur.
"""

from __future__ import annotations

import math

from spikeguard_protocol import OptionalSignal
from spikeguard_server.domain.detection.precursors import Leading
from spikeguard_server.domain.detection.settings import DetectionSettings

UNCHANGED = OptionalSignal.UNCHANGED_PARAMETERS.value
LIMIT = 0.95  # from here on most of what would be learned is lost


def stands_still(leading: Leading, step: int, share: float, settings: DetectionSettings) -> bool:
    """Whether `share` makes a precursor: at the limit twice running, once an excursion."""
    return leading.look_at_limit(step, not share < LIMIT, settings) and leading.warns(
        math.inf, settings
    )
