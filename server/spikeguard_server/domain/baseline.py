"""Robust location and scale of one signal over the rows that were found calm.

Law: causal and bounded. A row is judged against a fit made before it; it enters the window only
after `quarantine` calm rows, so that a slow lift cannot hide itself; what is not finite never
enters. The abscissa is log(step + 1), in which a loss curve is nearly straight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist

from spikeguard_server.domain.detection_settings import DetectionSettings
from spikeguard_server.domain.events import Trend
from spikeguard_server.domain.history import History

NORMAL_MAD = 1.4826  # standard deviation of a normal variable over its median absolute deviation
TAIL = 0.03  # share of rows that may stand out without being anomalies
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
    rows: int  # how many of the newest rows lie on it

    def at(self, step: int) -> float:
        place = abscissa(step) - self.end
        return self.level + (self.onward if place > 0 else self.slope) * place

    def z(self, step: int, value: float) -> float:
        """Deviations above the line; fewer where it has to be extrapolated far."""
        place = abscissa(step) - self.end
        if place <= 0:
            return (value - self.level - self.slope * place) / self.scale
        unsure = max(1.0, 2.0 * place / self.reach)
        return (value - self.level - self.onward * place) / (self.scale * unsure)

    def trend(self, step: int) -> Trend:
        return Trend(step, self.at(step), self.onward / (max(step, 0) + 1), self.scale)


def fit_line(
    steps: Sequence[int],
    values: Sequence[float],
    errors: Sequence[float],
    falling: bool,
    floor: float,
) -> Fit:
    """The line through the newest rows, as many of them as a line fits.

    `errors` are the newest out-of-sample errors: the scale is never below what they show, so a
    curve that bends away from its line widens its own band instead of raising alarms.
    """
    places = [abscissa(step) for step in steps]
    count = len(places)
    line = _line(places, values, falling)
    while not line.fits and count >= 64:
        count //= 2
        line = _line(places[-count:], values[-count:], falling)
    scale = line.scale
    if len(errors) >= 8:
        scale = max(scale, NORMAL_MAD * median([abs(error) for error in errors]))
    half = count // 2
    newest, unsure = _slope(places[-half:], values[-half:], scale)
    onward = BEND * min(0.0, max(line.slope, newest + unsure)) if falling else 0.0
    reach = max(places[-1] - places[-count], 1e-9)
    level = line.level + line.slope * (places[-1] - line.centre) + max(0.0, line.bend)
    return Fit(places[-1], reach, level, line.slope, onward, max(scale, floor, 1e-12), count)


@dataclass(frozen=True, slots=True)
class _Line:
    centre: float
    level: float
    slope: float
    scale: float
    bend: float  # how far its last quarter lies above it
    fits: bool  # its first and last quarters lie on it


def _line(places: Sequence[float], values: Sequence[float], falling: bool) -> _Line:
    """The line through the medians of both halves; its slope counts only where significant."""
    slope, error = _slope(places, values, _spread(values))
    if abs(slope) < 2.5 * error or (falling and slope > 0):
        slope = 0.0
    centre = median(places)
    rest = [value - slope * (place - centre) for place, value in zip(places, values, strict=True)]
    level = median(rest)
    spread = _spread(rest)
    quarter = max(8, len(rest) // 4)
    first, last = median(rest[:quarter]) - level, median(rest[-quarter:]) - level
    scale = max(spread, _upper_spread(rest, level))
    return _Line(centre, level, slope, scale, last, max(abs(first), abs(last)) <= 0.75 * spread)


def _slope(places: Sequence[float], values: Sequence[float], noise: float) -> tuple[float, float]:
    """Slope by the medians of both halves, and its standard error."""
    middle = len(places) // 2
    run = median(places[middle:]) - median(places[:middle])
    if run <= 0:
        return 0.0, math.inf
    rise = median(values[middle:]) - median(values[:middle])
    return rise / run, 2.5 * noise / math.sqrt(len(places)) / run


def _spread(values: Sequence[float]) -> float:
    centre = median(values)
    return NORMAL_MAD * median([abs(value - centre) for value in values])


def _upper_spread(values: Sequence[float], centre: float) -> float:
    """The scale that the upper tail alone shows: what is frequent up there is no anomaly."""
    ordered = sorted(values)
    rank = max(2, math.ceil(TAIL * len(values)))
    tenth = max(3, math.ceil(0.1 * len(values)))
    return max(
        (ordered[-rank] - centre) / _normal_score(rank, len(values)),
        (ordered[-tenth] - centre) / _normal_score(tenth, len(values)),
    )


@cache
def _normal_score(rank: int, count: int) -> float:
    """Expected value of the `rank`-th largest of `count` normal variables (Blom)."""
    return NormalDist().inv_cdf(1 - (rank - 0.375) / (count + 0.25))


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

    def admit(self, step: int, value: float, settings: DetectionSettings) -> None:
        """Take a calm, finite row; it shapes the fit after `quarantine` more."""
        error = value - self.fit.at(step) if self.fit else 0.0
        self.waiting.append((step, value, error))
        young = len(self.steps) < settings.window // 2
        held = settings.quarantine // 4 if young else settings.quarantine
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
        del self.errors[:-24]
        self.unfitted += 1
        due = settings.refit_every if len(self.steps) >= settings.window // 2 else 4
        if len(self.steps) >= settings.watchable_after and self.unfitted >= due:
            self.refit(settings)

    def refit(self, settings: DetectionSettings) -> None:
        self.unfitted = 0
        floor = settings.scale_floor * (abs(median(self.values)) if self.falling else 1.0)
        self.fit = fit_line(self.steps, self.values, self.errors, self.falling, floor)

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
