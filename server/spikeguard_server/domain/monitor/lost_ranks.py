"""From when on a run's loss is that of rank 0 alone.

Law: ranks that lost step with each other reduce nothing any more, so the loss is another quantity
from there on, noisier by the square root of their number; nothing known of the old one judges it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spikeguard_server.domain.detection.sample import Sample, SampleColumns
from spikeguard_server.domain.diagnosis.evidence import RANKS_LOST_STEP
from spikeguard_server.domain.monitor.state import State


def begins_alone(state: State, sample: Sample) -> bool:
    """Whether this sample is rank 0's alone, and the one before was not."""
    return sample.values.get(RANKS_LOST_STEP, 0.0) >= 1.0 and not _alone(state)


def beginnings(state: State, rows: SampleColumns) -> Sequence[bool]:
    """The same of each of `rows`, one after the other."""
    marked = np.array([_alone(state), *(v >= 1.0 for v in rows.column(RANKS_LOST_STEP, 0.0))])
    found: list[bool] = (marked[1:] & ~marked[:-1]).tolist()
    return found


def _alone(state: State) -> bool:
    """Whether the newest sample was rank 0's."""
    marked = state.traces.of[RANKS_LOST_STEP].steps
    return bool(marked) and marked[-1] == state.newest_step
