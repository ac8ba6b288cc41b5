"""Robust location and scale of one signal over the rows that were found calm.

Law: causal and bounded. A row is judged against a fit made before it; it enters the window only
after `quarantine` calm rows, so that a slow lift cannot hide itself; what is not finite never
enters. A stack of fits is made by the same elementwise operations as one, so that the bits do not
depend on how many are made at once. The abscissa is log(step + 1), in which a loss curve is nearly
straight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from spikeguard_server.domain.detection.history import NEWEST, History
from spikeguard_server.domain.detection.robust_lines import (
    NORMAL_MAD,
    Array,
    Lines,
    fit_lines,
    long_run_variance,
    middle,
)
from spikeguard_server.domain.detection.settings import DetectionSettings
from spikeguard_server.domain.events import Trend

FREQUENT = 0.5  # part of the upper tail's scale that a row has to exceed to stand out alone
WIDE = 1.4  # times the narrow scale from which on it is the upper tail that makes the scale
ENOUGH = 64  # rows that say how high the noise reaches
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
    highest: float  # z of the highest row, where the upper tail makes the scale; else infinite
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
    highest: Array


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
    scale = np.maximum(scale, least)
    reach = np.where(
        (scale >= WIDE * narrow) & (lines.rows >= ENOUGH), lines.highest / scale, np.inf
    )
    return Scales(onward, scale, narrow, reach)


def record_z(highest: Array, settings: DetectionSettings) -> Array:
    """From how many deviations on a row is higher than all that shaped its baseline."""
    return np.maximum(settings.record_part * highest, settings.record_z)


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
        float(scaled.highest[window]),
        int(lines.rows[window]),
        inertia(float(lines.alike[window])),
    )


@cache
def inertia(alike: float) -> float:
    """Long-run variance of noise over that of AR(1) noise of correlation 0.5, from 1 to 3.

    `alike`: share of neighbours on the same side, of which a window leaves so much unsure.
    """
    return min(3.0, max(1.0, long_run_variance(max(0.0, alike - 0.5 - 0.08)) / 3))


ERRORS = 48  # newest out-of-sample errors that the scale has to cover
FEWEST_ERRORS = 8  # of them, for the scale to heed them
STEEP = 0.06  # part of the level that is the most of a descent to be extrapolated: it will bend


def median(values: Sequence[float]) -> float:
    """The median of finite values; of none it is NaN."""
    if not values:
        return math.nan
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def gap_of(steps: Sequence[int]) -> float:
    """Median distance of steps; 1 where it is not known."""
    if len(steps) < 2:
        return 1.0
    ends = zip(steps[1:], steps, strict=False)
    return max(1.0, median([after - before for after, before in ends]))


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
        self,
        step: int,
        value: float,
        settings: DetectionSettings,
        *,
        lifted: bool = False,
        error: float | None = None,
    ) -> None:
        """Take a calm, finite row; it shapes the fit after `quarantine` more.

        `lifted`: a lift is under way, so what waits goes on waiting until it has shown itself.
        `error`: how far the row lies above the present line, where that is known.
        """
        if error is None:
            error = self.fit.rest(abscissa(step), value) if self.fit else 0.0
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
            self.restart()

    def restart(self) -> None:
        """Forget every row."""
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
        if len(self.steps) > settings.window:
            del self.steps[0], self.values[0]
        if len(self.errors) > ERRORS:
            del self.errors[0]
        self.unfitted += 1
        due = self.refit_every(settings) if len(self.steps) >= settings.window // 2 else 4
        if len(self.steps) >= settings.watchable_after and self.unfitted >= due:
            self.refit(settings)

    def refit_every(self, settings: DetectionSettings) -> int:
        """Rows between two fits once the window is half full."""
        return settings.refit_every if self.falling else settings.refit_leading_every

    def refit(self, settings: DetectionSettings) -> None:
        self.unfitted = 0
        places = np.array([abscissae(self.steps)])
        errors = np.array([self.errors]) if len(self.errors) >= FEWEST_ERRORS else None
        with np.errstate(all="ignore"):
            lines = fit_lines(places, np.array([self.values]), np.array([self.falling]))
            scaled = scales(lines, errors, self.falling, settings.scale_floor)
        self.fit = fit_of(lines, scaled, 0)

    def newest(self, rows: int, before: int) -> list[float]:
        """The newest calm rows before a step, in quarantine or not."""
        entered = zip(self.steps[-rows:], self.values[-rows:], strict=True)
        known = [*entered, *((step, value) for step, value, _ in self.waiting)]
        return [value for step, value in known if step < before][-rows:]

    def known(self) -> list[tuple[int, float]]:
        """Every calm row, in quarantine or not."""
        entered = zip(self.steps, self.values, strict=True)
        return [*entered, *((step, value) for step, value, _ in self.waiting)]

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

    def trend(self, step: int, ahead: int) -> Trend | None:
        """Where the signal heads from `step` on, for some `ahead` steps, by the long memory.

        By the window alone while there is no more.
        """
        if self.fit is None:
            return None
        curve = self.history.curve()
        if curve is None or not math.isfinite(curve.residual):
            return self.fit.trend(step)
        places = [abscissa(at) for at in self.steps[-NEWEST:]]
        curve = curve.moved(places, self.values[-NEWEST:], self.fit.scale)
        place, later = abscissa(step), abscissa(step + ahead)
        level, drop = curve.at(place), curve.at(place) - curve.at(later)
        slope = -drop / (later - place) / math.hypot(1.0, drop / (STEEP * max(abs(level), 1e-12)))
        return Trend(step, level, slope / (max(step, 0) + 1), self.fit.scale)

    @property
    def gap(self) -> float:
        """Median distance of rows, in steps; 1 where it is not known."""
        return gap_of(self.steps)
