"""What grows slowly and steadily towards a limit: the norm of the weights, attention logits,
activation outliers.

Pure. Nothing is said of a curve that is flat, wanders or bends (docs/stability.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from spikeguard_core.stability.score import Floats
from spikeguard_protocol import OptionalSignal, Signal

LEAST_STEPS: Final = 2_000  # of a stretch
BLOCKS: Final = 16  # equal parts of it, each told by its median
LEAST_ROWS: Final = 3  # measured in each part
RISING: Final = 0.95  # of all pairs of parts the later is the larger
KEEPS_ON: Final = 0.8  # the slope of the newer half, of that of the older one
BENT: Final = 1.25  # the same, from which on growth is taken for exponential
FAR: Final = 2.0  # stretches ahead: a rise that fades no faster than `KEEPS_ON` gets there
GROWN: Final = 0.05  # over the stretch, of the level before
SIGNALS: Final = (
    Signal.PARAM_NORM.value,
    OptionalSignal.ATTENTION_LOGIT_MAX.value,
    OptionalSignal.ACTIVATION_OUTLIER_MAX.value,
)
HELPS: Final[Mapping[str, str]] = {
    SIGNALS[0]: "weight decay on the matrices bounds it",
    SIGNALS[1]: "QK-norm, a softcap of the logits, or a lower rate",
    SIGNALS[2]: "keep these activations out of 8-bit formats, or decay the weights before them",
}


@dataclass(frozen=True, slots=True)
class Trend:
    """A signal on its way to a limit."""

    signal: str
    first_step: int  # of the stretch that shows it
    last_step: int
    before: float  # level at its begin
    now: float
    limit: float
    reached_at: int  # the step, at the present rate

    @property
    def sentence(self) -> str:
        """As pages and terminals say it."""
        return (
            f"{self.signal} rises steadily: from {self.before:.4g} at step {self.first_step:,} to "
            f"{self.now:.4g} at step {self.last_step:,}. At this rate it reaches {self.limit:g} "
            f"at step {self.reached_at:,}. What helps: {HELPS[self.signal]}."
        )


def trend_of(signal: str, steps: Floats, values: Floats, limit: float) -> Trend | None:
    """`steps` rise; `values` of each, NaN where not measured. None where nothing is to be said."""
    measured = np.isfinite(values)
    steps, values = steps[measured], values[measured]
    if len(steps) < BLOCKS * LEAST_ROWS or steps[-1] - steps[0] < LEAST_STEPS:
        return None
    bounds = np.searchsorted(steps, np.linspace(steps[0], steps[-1], BLOCKS + 1)[1:-1])
    parts = list(zip(np.split(steps, bounds), np.split(values, bounds), strict=True))
    if min(len(part) for part, _ in parts) < LEAST_ROWS:
        return None
    at, level = (np.array([np.median(part[n]) for part in parts]) for n in (0, 1))
    half = BLOCKS // 2
    older, newer = _slope(at[:half], level[:half]), _slope(at[half:], level[half:])
    first, later = np.triu_indices(BLOCKS, 1)
    rising = (level[later] > level[first]).mean() >= RISING and 0.0 < KEEPS_ON * older <= newer
    if not rising:
        return None
    now, left = _ahead(steps[-1] - at[half:], level[half:], limit)
    if newer > BENT * older and level[0] > 0.0 < limit:  # exponential: a line comes late
        log_now, left = _ahead(steps[-1] - at[half:], np.log(level[half:]), float(np.log(limit)))
        now = float(np.exp(log_now))
    if now - level[0] < GROWN * abs(level[0]) or now >= limit:
        return None
    if left > FAR * (steps[-1] - steps[0]):
        return None
    first_step, last_step = int(steps[0]), int(steps[-1])
    reached = last_step + round(left)
    return Trend(signal, first_step, last_step, float(level[0]), now, limit, reached)


def _ahead(ago: Floats, level: Floats, limit: float) -> tuple[float, float]:
    """Where the line through `level`, so many steps `ago`, is now, and in how many steps it meets
    `limit`."""
    slope = _slope(-ago, level)
    now = float(np.median(level + slope * ago))
    return now, (limit - now) / slope


def _slope(at: Floats, level: Floats) -> float:
    """Theil and Sen: the median of the slopes between all pairs."""
    first, last = np.triu_indices(len(at), 1)
    return float(np.median((level[last] - level[first]) / (at[last] - at[first])))
