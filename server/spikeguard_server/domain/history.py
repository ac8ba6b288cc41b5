"""The long memory of a loss: block means of its calm rows, from which its descent is extrapolated.

Law: constant memory. When the blocks are full, neighbours are joined and every block is twice as
long, so that the whole run is always covered. The abscissa is log(step + 1), in which a loss curve
is nearly straight; what bends upwards is extrapolated by its newest, flatter part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCKS = 64
SPANS = (1.1, 0.7, 0.35)  # of log(step): the newest two thirds, half and quarter of the run
FEWEST = 5  # blocks that a slope is taken from
SIGNIFICANT = 2.0  # standard errors
FLATTER = 1.0  # standard errors by which a newer part must be flatter to be believed
KEPT = 0.5  # part of the slope that is extrapolated: loss curves bend upwards


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
            for place, value in zip(places[row:last], values[row:last], strict=True):
                self.place_sum += place
                self.value_sum += value
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

    def slope(self) -> float | None:
        """Descent beyond the newest block, a unit of log(step + 1); at most 0.

        None while there are too few blocks to see one.
        """
        flattest: float | None = None
        for span in SPANS:  # the longest first: noise hides a descent from the short ones
            found = self._slope_over(span)
            if found is None:
                continue
            slope, error = found
            if flattest is None:
                flattest = slope if slope < -SIGNIFICANT * error else 0.0
            elif slope > flattest + FLATTER * error:
                flattest = slope
        return None if flattest is None else KEPT * min(0.0, flattest)

    def _slope_over(self, span: float) -> tuple[float, float] | None:
        if not self.places:
            return None
        first = self.places[-1] - span
        rows = [i for i, place in enumerate(self.places) if place >= first]
        if len(rows) < FEWEST:
            return None
        return _least_squares([self.places[i] for i in rows], [self.means[i] for i in rows])


def _pairs(values: Sequence[float]) -> list[float]:
    return [(a + b) / 2 for a, b in zip(values[::2], values[1::2], strict=True)]


def _least_squares(places: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Slope and its standard error from the residuals; NaN where the values are too large.

    Products, because a power of a huge float raises where a product only becomes infinite.
    """
    count = len(places)
    centre, level = sum(places) / count, sum(values) / count
    away = [(place - centre, value - level) for place, value in zip(places, values, strict=True)]
    spread = sum(x * x for x, _ in away)
    slope = sum(x * y for x, y in away) / spread
    rests = [y - slope * x for x, y in away]
    return slope, math.sqrt(sum(rest * rest for rest in rests) / (count - 2) / spread)
