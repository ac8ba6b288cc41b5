"""What rows of a signal look like to its baseline: judged one by one, and block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Block(NamedTuple):
    """What 16 calm rows showed. Heights are residuals over the noise."""

    noise: float
    measured: float  # noise that was known at its begin, by the newest rows alone
    top: float  # the highest row
    bottom: float  # the lowest
    alone: float  # the lowest below its neighbours
    pair: float  # the highest of lower rows of neighbours
    lift: float  # the highest lift, in the signal's unit,
    long_lift: float  # and the highest of 16 rows
    level: float  # at its end
    step: int  # at its end


class End(NamedTuple):
    """A block that ends among judged rows, and what holds for the rows after it."""

    rows: int  # judged, up to its end
    noise: float
    measured: float  # the noise of the newest rows alone
    wider: float  # by which rows lie wider than the noise
    block: Block

    @property
    def deviation(self) -> float:
        return self.noise * self.wider


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows as they stand to the baseline, each as if all before it were calm; shape (rows,)."""

    values: Array
    level: Array
    scale: Array
    z: Array
    lift: Array  # median of the 8 rows before, above the 32 before these; -inf while unknown
    long_lift: Array  # the same of 16 rows
    ratio: Array  # residual over noise
    ends: Sequence[End]  # blocks that end within, by rows
