"""The signals that may move before the loss: norms, judged in log space.

Law: a leading signal warns and is evidence; it never opens an incident by being large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from spikeguard_protocol import Signal
from spikeguard_server.domain.detection.baseline import Baseline, abscissa
from spikeguard_server.domain.detection.batch_path import (
    FEWEST,
    LONGEST,
    RowBatch,
    is_ready,
    next_length,
)
from spikeguard_server.domain.detection.settings import DetectionSettings

LEADING: tuple[str, ...] = (
    Signal.UPDATE_NORM.value,
    Signal.UPDATE_NORM_SAMPLED.value,
    Signal.GRAD_NORM.value,
    Signal.GRAD_NORM_AT_STEP.value,
    Signal.ADAM_V_NORM.value,
    Signal.PARAM_NORM.value,
)
LEAST = 1e-30
ANEW = 5  # calm rows after which a signal that moves has begun anew


def log_norm(value: float) -> float:
    """The logarithm in which norms are judged; a norm of zero is a very small one."""
    return math.log(value if value > LEAST else LEAST)


def _levels(values: Sequence[float]) -> list[float]:
    """`log_norm` of the values before the first that is not finite."""
    if not all(map(math.isfinite, values)):
        values = list(takewhile(math.isfinite, values))
    if not values or min(values) > LEAST:
        return list(map(math.log, values))
    return list(map(log_norm, values))


@dataclass(slots=True)
class Leading:
    """One leading signal: its baseline and whether it is away from it."""

    baseline: Baseline
    first_step: int | None = None  # of the present excursion
    first_z: float = 0.0
    away: int = 0  # anomalous rows of the present excursion
    quiet: int = 0  # rows since it was last away
    told: bool = False  # a precursor was told of the present excursion

    def look(self, step: int, value: float, frozen: bool, settings: DetectionSettings) -> float:
        """Judge one value, keep it if calm and not `frozen`; returns z, inf if not finite."""
        if not math.isfinite(value):
            self._move(step, math.inf)
            return math.inf
        level = log_norm(value)
        self.baseline.restart_if_stale(step)
        fit = self.baseline.fit
        z, rest = 0.0, None
        if fit is not None:
            place = abscissa(step)
            rest = fit.rest(place, level)
            z = fit.z(place, rest)
        self.judge(step, z, settings)
        if z < settings.suspect_z and not frozen:
            self.baseline.admit(step, level, settings, error=rest)
        return z

    def judge(self, step: int, z: float, settings: DetectionSettings) -> float:
        """Note whether a row is away from the baseline; returns `z`."""
        if z >= settings.confirm_z:
            self._move(step, z)
        else:
            self._rest(settings)
        return z

    def look_at_limit(self, step: int, over: bool, settings: DetectionSettings) -> bool:
        """Judge one value of a signal that has a limit instead of a baseline; returns `over`."""
        if over:
            self._move(step, math.inf)
        else:
            self._rest(settings)
        return over

    def stretch(
        self, steps: Sequence[int], places: Sequence[float], values: Sequence[float]
    ) -> RowBatch:
        """Rows in a row, as far as they are finite; `places`: abscissae of the steps."""
        levels = _levels(values)
        if len(levels) < len(steps):
            steps, places = steps[: len(levels)], places[: len(levels)]
        return RowBatch(self.baseline, steps, places, levels)

    def look_at_all(
        self,
        steps: Sequence[int],
        places: Sequence[float],
        values: Sequence[float],
        settings: DetectionSettings,
        fitted: RowBatch | None = None,
    ) -> list[tuple[int, float]]:
        """Judge and keep values of increasing steps; the rows that make precursors, with their z.

        `fitted`: the first `LONGEST` rows, and maybe more than there are. The same as `look` and
        `warns` row by row, while no incident is open.
        """
        warnings, row, length = list[tuple[int, float]](), 0, LONGEST
        while row < len(steps):
            if len(steps) - row >= FEWEST and is_ready(self.baseline, settings):
                part = slice(row, row + length)
                stretch = fitted or self.stretch(steps[part], places[part], values[part])
                calm = self._take_calm(stretch, len(steps) - row, settings)
                row, length, fitted = row + calm, next_length(length, calm), None
            if row < len(steps):
                z = self.look(steps[row], values[row], False, settings)
                if self.warns(z, settings):
                    warnings.append((row, z))
            row += 1
        return warnings

    def _take_calm(self, stretch: RowBatch, most: int, settings: DetectionSettings) -> int:
        """Take the calm rows before the first that is not; returns how many they are."""
        calm = stretch.look(settings.confirm_z, settings, most=most)
        stretch.take(calm)
        if calm:
            self.away, self.first_z, self.quiet = 0, 0.0, self.quiet + calm
            if self.quiet >= settings.precursor_quiet:
                self.first_step, self.told = None, False
        return calm

    @property
    def moved_step(self) -> int | None:
        """Where what it does now began; None while it is calm."""
        return self.first_step if self.quiet < ANEW else None

    def warns(self, z: float, settings: DetectionSettings) -> bool:
        """Whether this row makes a precursor: far off twice running, once an excursion."""
        if self.told or self.away < 2 or max(z, self.first_z) < settings.precursor_z:
            return False
        self.told = True
        return True

    def _move(self, step: int, z: float) -> None:
        if self.first_step is None or self.quiet >= ANEW:
            self.first_step, self.first_z = step, z
        self.away = self.away + 1 if self.quiet == 0 else 1
        self.first_z = max(self.first_z, z)
        self.quiet = 0

    def _rest(self, settings: DetectionSettings) -> None:
        self.quiet += 1
        if self.quiet >= settings.precursor_quiet:
            self.first_step, self.told = None, False
        self.away, self.first_z = 0, 0.0
