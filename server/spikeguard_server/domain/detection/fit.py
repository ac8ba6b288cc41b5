"""A line with its scale: what one row of a signal is judged by.

Law: pure. A stack of fits is made by the same elementwise operations as one, so that the bits do
not depend on how many are made at once. The abscissa is log(step + 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from spikeguard_server.domain.detection.robust_lines import (
    NORMAL_MAD,
    Array,
    Lines,
    long_run_variance,
    middle,
)
from spikeguard_server.domain.events import Trend

FREQUENT = 0.5  # part of the upper tail's scale that a row has to exceed to stand out alone
BEND = 0.6  # part of a falling slope that is extrapolated: loss curves bend upwards
LEAST = 1e-12  # scale


@lru_cache(maxsize=4096)
def abscissa(step: int) -> float:
    """Where a step lies; kept, since every signal of a step asks for it more than once."""
    return math.log(max(step, 0) + 1)


def abscissae(steps: Sequence[int]) -> list[float]:
    """Where steps that rise lie."""
    if steps and steps[0] >= 0 and steps[-1] - steps[0] == len(steps) - 1:
        return list(map(math.log, range(steps[0] + 1, steps[-1] + 2)))
    return list(map(abscissa, steps))


@dataclass(frozen=True, slots=True)
class Fit:
    """A straight line in log(step + 1) with its robust scale."""

    end: float  # abscissa at which the rows end and the line has `level`
    reach: float  # the extent of the rows, in the abscissa's unit
    level: float
    slope: float  # within the rows, a unit of log(step + 1)
    onward: float  # beyond them: a bend of the curve taken into account
    scale: float  # robust standard deviation of a row around the line
    narrow: float  # the same by the middle of the rows, which outliers do not widen
    rows: int  # how many of the newest rows lie on it
    inertia: float  # how much farther noise carries a sum than where rows are hardly correlated

    def at(self, step: int) -> float:
        return self.at_place(abscissa(step))

    def at_place(self, abscissa: float) -> float:
        place = abscissa - self.end
        return self.level + (self.onward if place > 0 else self.slope) * place

    def rest(self, abscissa: float, value: float) -> float:
        """How far `value` lies above the line."""
        place = abscissa - self.end
        return value - self.level - (self.onward if place > 0 else self.slope) * place

    def z(self, abscissa: float, rest: float) -> float:
        """`rest` in deviations; fewer where the line has to be extrapolated far."""
        return rest / (self.scale * max(1.0, 2.0 * (abscissa - self.end) / self.reach))

    def trend(self, step: int) -> Trend:
        return Trend(step, self.at(step), self.onward / (max(step, 0) + 1), self.scale)


class Scales(NamedTuple):
    """What makes fits of lines; arrays of shape (windows,), named as in `Fit`."""

    onward: Array
    scale: Array
    narrow: Array


def scales(lines: Lines, errors: Array | None, falling: bool, floor: float) -> Scales:
    """The scales of lines; `floor` is the least, as a part of the level.

    `errors`, of shape (windows, rows), are the newest out-of-sample errors, if there are some: the
    scale is never below what they show, so a curve that bends away from its line widens its own
    band instead of raising alarms.
    """
    spread, onward = lines.spread, np.zeros(len(lines.slope))
    if errors is not None:
        spread = np.maximum(spread, NORMAL_MAD * middle(np.sort(np.abs(errors), axis=1)))
    scale = np.maximum(spread, lines.tail)
    if falling and (bent := lines.slope < 0.0).any():
        onward = np.where(bent, _onward(lines, scale), onward)
    least = np.maximum(floor * (np.abs(lines.median) if falling else 1.0), LEAST)
    narrow = np.maximum(np.maximum(spread, FREQUENT * lines.tail), least)
    return Scales(onward, np.maximum(scale, least), narrow)


def _onward(lines: Lines, scale: Array) -> Array:
    newest = lines.newest_rise / lines.newest_run
    newest = newest + 2.5 * scale / np.sqrt(lines.rows // 2) / lines.newest_run
    onward = BEND * np.minimum(0.0, np.maximum(lines.slope, newest))
    return np.where(lines.newest_run > 0.0, onward, 0.0)


def fit_of(lines: Lines, scaled: Scales, window: int) -> Fit:
    """One of them."""
    return Fit(
        float(lines.end[window]),
        float(lines.reach[window]),
        float(lines.level[window]),
        float(lines.slope[window]),
        float(scaled.onward[window]),
        float(scaled.scale[window]),
        float(scaled.narrow[window]),
        int(lines.rows[window]),
        inertia(float(lines.alike[window])),
    )


@cache
def inertia(alike: float) -> float:
    """Long-run variance of noise over that of AR(1) noise of correlation 0.5, from 1 to 3.

    `alike`: share of neighbours on the same side, of which a window leaves so much unsure.
    """
    return min(3.0, max(1.0, long_run_variance(max(0.0, alike - 0.5 - 0.08)) / 3))
