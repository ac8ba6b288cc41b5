"""Robust location and scale of one signal over the rows that were found calm.

Law: causal and bounded. A row is judged against a fit made before it; it enters the window only
after `quarantine` calm rows, so that a slow lift cannot hide itself; what is not finite never
enters. The abscissa is log(step + 1), in which a loss curve is nearly straight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from spikeguard_server.domain.detection_settings import DetectionSettings
from spikeguard_server.domain.events import Trend

NORMAL_MAD = 1.4826  # standard deviation of a normal variable over its median absolute deviation


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

    centre: float  # abscissa at which the line has `level`
    level: float
    slope: float  # a unit of log(step + 1)
    scale: float  # robust standard deviation of a row around the line

    def at(self, step: int) -> float:
        return self.level + self.slope * (abscissa(step) - self.centre)

    def z(self, step: int, value: float) -> float:
        return (value - self.at(step)) / self.scale

    def trend(self, step: int) -> Trend:
        return Trend(step, self.at(step), self.slope / (max(step, 0) + 1), self.scale)


def fit_line(
    steps: Sequence[int],
    values: Sequence[float],
    errors: Sequence[float],
    falling: bool,
    floor: float,
) -> Fit:
    """The line through the medians of both halves; its slope counts only where it is significant.

    `errors` are the newest out-of-sample errors: the scale is never below what they show, so a
    curve that bends away from its line widens its own band instead of raising alarms.
    """
    middle = len(steps) // 2
    places = [abscissa(step) for step in steps]
    left, right = median(values[:middle]), median(values[middle:])
    run = median(places[middle:]) - median(places[:middle])
    slope = (right - left) / run if run > 0 else 0.0
    flat = median(values)
    noise = NORMAL_MAD * median([abs(value - flat) for value in values])
    if abs(right - left) < 2.5 * noise / math.sqrt(len(steps)) or (falling and slope > 0):
        slope = 0.0
    centre = median(places)
    rest = [value - slope * (place - centre) for place, value in zip(places, values, strict=True)]
    level = median(rest)
    scale = NORMAL_MAD * median([abs(value - level) for value in rest])
    if len(errors) >= 8:
        scale = max(scale, NORMAL_MAD * median([abs(error) for error in errors]))
    return Fit(centre, level, slope, max(scale, floor, 1e-12))


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

    def admit(self, step: int, value: float, settings: DetectionSettings) -> None:
        """Take a calm, finite row; it shapes the fit after `quarantine` more."""
        error = value - self.fit.at(step) if self.fit else 0.0
        self.waiting.append((step, value, error))
        young = len(self.steps) < settings.window // 2
        held = settings.quarantine // 4 if young else settings.quarantine
        while len(self.waiting) > held:
            self._enter(*self.waiting.pop(0), settings)

    def _enter(self, step: int, value: float, error: float, settings: DetectionSettings) -> None:
        self.steps.append(step)
        self.values.append(value)
        self.errors.append(error)
        if self.fit is None:
            self.errors.clear()
        del self.steps[: -settings.window]
        del self.values[: -settings.window]
        del self.errors[: -settings.window // 2]
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

    def shift(self, offset: float, settings: DetectionSettings) -> None:
        """Move to a level that was accepted, keeping trend and scale."""
        self.values = [value + offset for value in self.values]
        if self.fit is not None:
            self.refit(settings)

    def cut(self, step: int, settings: DetectionSettings) -> None:
        """Forget every row at `step` or later: the run went back."""
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

    @property
    def gap(self) -> float:
        """Median distance of rows, in steps; 1 where it is not known."""
        if len(self.steps) < 2:
            return 1.0
        ends = zip(self.steps[1:], self.steps, strict=False)
        return max(1.0, median([after - before for after, before in ends]))
