"""Robust location and scale of one signal over the rows that were found calm.

Law: causal and bounded. A row is judged against a fit made before it; it enters the window only
after `quarantine` calm rows, so that a slow lift cannot hide itself; what is not finite never
enters. The abscissa is log(step + 1), in which a loss curve is nearly straight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spikeguard_server.domain.detection_settings import DetectionSettings
from spikeguard_server.domain.events import Trend
from spikeguard_server.domain.history import History
from spikeguard_server.domain.line import NORMAL_MAD, Line, fit_lines, long_run_variance

ERRORS = 48  # newest out-of-sample errors that the scale has to cover
FREQUENT = 0.5  # part of the upper tail's scale that a row has to exceed to stand out alone
BEND = 0.6  # part of a falling slope that is extrapolated: loss curves bend upwards


def abscissa(step: int) -> float:
    return math.log(max(step, 0) + 1)


def median(values: Sequence[float]) -> float:
    """The median of finite values; of none it is NaN."""
    if not values:
        return math.nan
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


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
        place = abscissa(step) - self.end
        return self.level + (self.onward if place > 0 else self.slope) * place

    def rest(self, step: int, value: float) -> float:
        """How far `value` lies above the line."""
        place = abscissa(step) - self.end
        return value - self.level - (self.onward if place > 0 else self.slope) * place

    def z(self, step: int, value: float) -> float:
        """Deviations above the line; fewer where it has to be extrapolated far."""
        return self.rest(step, value) / (self.scale * self.doubt(abscissa(step) - self.end))

    def doubt(self, place: float) -> float:
        """How much wider the band is drawn `place` beyond the rows."""
        return max(1.0, 2.0 * place / self.reach)

    def trend(self, step: int) -> Trend:
        return Trend(step, self.at(step), self.onward / (max(step, 0) + 1), self.scale)


def scaled_fit(line: Line, errors: Sequence[float], falling: bool, floor: float) -> Fit:
    """`line` with its scale; `floor` is the least, as a part of the level.

    `errors` are the newest out-of-sample errors: the scale is never below what they show, so a
    curve that bends away from its line widens its own band instead of raising alarms.
    """
    end, reach, level, slope, spread, tail, rise, run, rows, alike, middle = line
    if len(errors) >= 8:
        spread = max(spread, NORMAL_MAD * median(list(map(abs, errors))))
    scale = max(spread, tail)
    onward = 0.0
    if falling and run > 0:
        newest = rise / run + 2.5 * scale / math.sqrt(rows // 2) / run
        onward = BEND * min(0.0, max(slope, newest))
    least = max(floor * (abs(middle) if falling else 1.0), 1e-12)
    narrow = max(spread, FREQUENT * tail, least)
    return Fit(end, reach, level, slope, onward, max(scale, least), narrow, rows, inertia(alike))


def inertia(alike: float) -> float:
    """Long-run variance of noise over that of AR(1) noise of correlation 0.5, from 1 to 3.

    `alike`: share of neighbours on the same side, of which a window leaves so much unsure.
    """
    return min(3.0, max(1.0, long_run_variance(max(0.0, alike - 0.5 - 0.08)) / 3))


@dataclass(slots=True)
class Baseline:
    """The window of one signal. `values` are logarithms where the signal is a norm."""

    falling: bool  # a loss: its trend never rises
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    waiting: list[tuple[int, float, float]] = field(default_factory=list)  # step, value, error
    unfitted: int = 0  # rows admitted since the last fit
    fit: Fit | None = None
    history: History = field(default_factory=History)  # of a loss; empty for a norm

    def admit(
        self, step: int, value: float, settings: DetectionSettings, *, lifted: bool = False
    ) -> None:
        """Take a calm, finite row; it shapes the fit after `quarantine` more.

        `lifted`: a lift is under way, so what waits goes on waiting until it has shown itself.
        """
        error = self.fit.rest(step, value) if self.fit else 0.0
        self.waiting.append((step, value, error))
        young = len(self.steps) < settings.window // 2
        held = settings.quarantine // 4 if young else settings.quarantine
        if lifted:
            held = settings.quarantine_lifted
        while len(self.waiting) > held:
            self._enter(*self.waiting.pop(0), settings)

    def restart_if_stale(self, step: int) -> None:
        """Forget a window that is much shorter than the gap since its end."""
        newest = self.waiting[-1][0] if self.waiting else (self.steps[-1] if self.steps else step)
        if self.steps and step - newest > 3 * max(newest - self.steps[0], 8):
            self.steps, self.values, self.errors, self.waiting = [], [], [], []
            self.fit, self.unfitted, self.history = None, 0, History()

    def _enter(self, step: int, value: float, error: float, settings: DetectionSettings) -> None:
        if self.falling:
            self.history.add(abscissa(step), value)
        self.steps.append(step)
        self.values.append(value)
        self.errors.append(error)
        if self.fit is None:
            self.errors.clear()
        del self.steps[: -settings.window]
        del self.values[: -settings.window]
        del self.errors[:-ERRORS]
        self.unfitted += 1
        due = self.refit_every(settings) if len(self.steps) >= settings.window // 2 else 4
        if len(self.steps) >= settings.watchable_after and self.unfitted >= due:
            self.refit(settings)

    def refit_every(self, settings: DetectionSettings) -> int:
        """Rows between two fits once the window is half full."""
        return settings.refit_every if self.falling else settings.refit_leading_every

    def refit(self, settings: DetectionSettings) -> None:
        self.unfitted = 0
        places = [abscissa(step) for step in self.steps]
        lines = fit_lines(np.array([places]), np.array([self.values]), self.falling)
        line = next(lines.each())
        self.fit = scaled_fit(line, self.errors, self.falling, settings.scale_floor)

    def drop_waiting(self) -> None:
        """Forget the rows in quarantine: something did come of them."""
        self.waiting.clear()

    def settle(self, step: int, level: float, settings: DetectionSettings) -> None:
        """Go on at `level`, as noisy as before, with the trend to be learned anew."""
        if self.fit is None:
            return
        self.history.shift(level - self.fit.at(step))
        fit, count = self.fit, min(self.fit.rows, settings.window // 2)
        noise = [
            value - fit.at(at)
            for at, value in zip(self.steps[-count:], self.values[-count:], strict=True)
        ]
        centre = median(noise)
        gap = max(1, round(self.gap))
        self.steps = [step - gap * (count - 1 - row) for row in range(count)]
        self.values = [level + value - centre for value in noise]
        self.errors.clear()
        self.waiting.clear()
        self.refit(settings)

    def cut(self, step: int, settings: DetectionSettings) -> None:
        """Forget every row at `step` or later: the run went back."""
        self.history.cut(abscissa(step))
        self.waiting = [row for row in self.waiting if row[0] < step]
        keep = sum(1 for known in self.steps if known < step)
        if keep == len(self.steps):
            return
        del self.steps[keep:]
        del self.values[keep:]
        self.errors.clear()
        self.fit = None
        if keep >= settings.watchable_after:
            self.refit(settings)

    def trend(self, step: int) -> Trend | None:
        """Where the signal heads from `step` on, by the fit and by the long memory."""
        if self.fit is None:
            return None
        trend, slope = self.fit.trend(step), self.history.slope()
        if slope is None:
            return trend
        return Trend(step, trend.level, slope / (max(step, 0) + 1), trend.scale)

    @property
    def gap(self) -> float:
        """Median distance of rows, in steps; 1 where it is not known."""
        if len(self.steps) < 2:
            return 1.0
        ends = zip(self.steps[1:], self.steps, strict=False)
        return max(1.0, median([after - before for after, before in ends]))
