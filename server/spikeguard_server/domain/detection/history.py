"""The long memory of a loss: block means of its calm rows, from which its descent is extrapolated.

Law: constant memory. When the blocks are full, neighbours are joined and every block is twice as
long, so that the whole run is always covered. The abscissa is log(step + 1), in which a loss curve
is nearly straight; what bends is drawn as a power of the step (Kaplan et al., arXiv 2001.08361).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

BLOCKS = 64
SPAN = 1.4  # of log(step): the newest three quarters of the run shape the curve
FEWEST = 5  # blocks that a curve is drawn through
POWERS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # of 1 / step that are tried; 0 is the logarithm
NEWER = (0.7, 0.35)  # spans of the newest half and quarter of the run, which may be flatter
SURELY = 2.0  # standard errors by which they have to be
NEWEST = 64  # rows that move the curve, where they surely lie off it


@dataclass(frozen=True, slots=True)
class TrendCurve:
    """level + slope * (1 - exp(-power * x)) / power, with x = log(step + 1) - place."""

    place: float
    level: float
    slope: float  # a unit of log(step + 1), at `place`; at most 0
    power: float
    residual: float  # mean square, of block means

    def at(self, place: float) -> float:
        return self.level + self.slope * _warp(place - self.place, self.power)

    def moved(self, places: Sequence[float], values: Sequence[float], scale: float) -> TrendCurve:
        """The curve, moved to its newest rows as far as their noise, `scale`, does not explain."""
        rests = [value - self.at(place) for place, value in zip(places, values, strict=True)]
        if not rests:
            return self
        rest, variance = sum(rests) / len(rests), scale * scale / len(rests)
        part = rest * rest / (rest * rest + variance) if rest else 0.0
        return replace(self, level=self.level + part * rest)


def _warp(x: float, power: float) -> float:
    return -math.expm1(-power * x) / power if power else x


@dataclass(slots=True)
class History:
    """Block means of one signal, oldest first."""

    places: list[float] = field(default_factory=list)  # mean log(step + 1) of a block
    means: list[float] = field(default_factory=list)
    width: int = 4  # rows a block
    count: int = 0  # rows in the block being filled
    place_sum: float = 0.0
    value_sum: float = 0.0

    def add(self, place: float, value: float) -> None:
        """Take one calm row."""
        self.count += 1
        self.place_sum += place
        self.value_sum += value
        if self.count == self.width:
            self.places.append(self.place_sum / self.width)
            self.means.append(self.value_sum / self.width)
            self.count, self.place_sum, self.value_sum = 0, 0.0, 0.0
            if len(self.places) == BLOCKS:
                self._join()

    def add_all(self, places: Sequence[float], values: Sequence[float]) -> None:
        """Take calm rows in their order, the same as one by one."""
        row = 0
        while row < len(values):
            last = row + self.width - self.count - 1
            self.place_sum = reduce(add, places[row:last], self.place_sum)
            self.value_sum = reduce(add, values[row:last], self.value_sum)
            self.count += len(values[row:last])
            if last < len(values):
                self.add(places[last], values[last])
            row = last + 1

    def _join(self) -> None:
        self.places = _pairs(self.places)
        self.means = _pairs(self.means)
        self.width *= 2

    def cut(self, place: float) -> None:
        """Forget what reaches `place` or lies beyond: the run went back."""
        keep = sum(1 for known in self.places if known < place)
        if keep < len(self.places):
            keep = max(0, keep - 1)  # the block before may reach across
        del self.places[keep:]
        del self.means[keep:]
        self.count, self.place_sum, self.value_sum = 0, 0.0, 0.0

    def shift(self, by: float) -> None:
        """A new level was accepted: the descent before it still says how the loss falls."""
        self.means = [mean + by for mean in self.means]
        self.value_sum += by * self.count

    def curve(self) -> TrendCurve | None:
        """Drawn by least squares through the newest blocks, in the power that fits them best.

        Where a newer part is surely flatter than the curve ends, by that part: a loss that has
        levelled out does not go on as its early descent. None while there are too few blocks.
        """
        if len(self.places) < FEWEST:
            return None
        first = min(self.places[-1] - SPAN, self.places[-FEWEST])
        drawn = [self._drawn(first, power) for power in POWERS]
        curve, _ = min(drawn, key=lambda found: found[0].residual)
        for span in NEWER:
            if self.places[-FEWEST] < self.places[-1] - span:
                break
            line, error = self._drawn(self.places[-1] - span, 0.0)
            if line.slope > curve.slope + SURELY * error:
                curve = line
        return curve

    def _drawn(self, first: float, power: float) -> tuple[TrendCurve, float]:
        """The curve through the blocks from `first` on, and the standard error of its slope."""
        rows = [i for i, place in enumerate(self.places) if place >= first]
        places, means = [self.places[i] for i in rows], [self.means[i] for i in rows]
        return _least_squares(places, means, power)


def _pairs(values: Sequence[float]) -> list[float]:
    return [(a + b) / 2 for a, b in zip(values[::2], values[1::2], strict=True)]


def _least_squares(
    places: Sequence[float], values: Sequence[float], power: float
) -> tuple[TrendCurve, float]:
    """Curve and standard error of its slope; NaN where the values are too large.

    Products, because a power of a huge float raises where a product only becomes infinite.
    """
    count, end = len(places), places[-1]
    warped = [_warp(place - end, power) for place in places]
    centre, level = sum(warped) / count, sum(values) / count
    away = [(x - centre, value - level) for x, value in zip(warped, values, strict=True)]
    spread = sum(x * x for x, _ in away)
    slope = sum(x * y for x, y in away) / spread
    square = sum((y - slope * x) * (y - slope * x) for x, y in away)
    falling = min(0.0, slope)
    curve = TrendCurve(end, level - falling * centre, falling, power, square / count)
    return curve, math.sqrt(square / (count - 2) / spread)
