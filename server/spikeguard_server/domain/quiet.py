"""The quiet path: many calm rows of a baseline at once, with the bits of one by one.

Law: a stretch is looked at without changing anything, up to the first row that is not calm, and as
much of it as is calm for every signal is then taken. The rest is for the row-by-row path.

Bound: a row needs its value, a multiplication by the slope and a comparison. The lines of a
stretch depend on its rows and not on one another, so they are fitted in one stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

import numpy as np

from spikeguard_server.domain.baseline import ERRORS, Baseline, Fit, abscissa, scaled_fit
from spikeguard_server.domain.detection_settings import DetectionSettings
from spikeguard_server.domain.line import Line, Lines, fit_lines

FEWEST = 16  # rows that are worth a stretch
LONGEST = 1024  # rows of a stretch: what is fitted in vain behind a row that is not calm


def is_ready(baseline: Baseline, settings: DetectionSettings) -> bool:
    """Whether each row that enters pushes out one, and no more is different from row to row."""
    full = len(baseline.steps) == settings.window
    return full and len(baseline.waiting) == settings.quarantine and baseline.fit is not None


def next_length(length: int, calm: int) -> int:
    """Rows to try next, after `calm` of `length` were taken: little is then fitted in vain."""
    return min(2 * length, LONGEST) if calm == length else max(2 * calm, FEWEST)


@dataclass(slots=True)
class Stretch:
    """Finite rows of one signal, of steps that increase from the baseline's newest on."""

    baseline: Baseline
    steps: Sequence[int]
    places: Sequence[float]  # abscissae of the steps
    values: Sequence[float]
    z: list[float] = field(default_factory=list)  # of the calm rows, from the first on
    _errors: list[float] = field(default_factory=list)  # old ones, those that wait, new ones
    _fits: list[tuple[int, Fit]] = field(default_factory=list)  # row from which on each is valid

    def look(self, limit: float, settings: DetectionSettings, alone: float = inf) -> int:
        """How many rows lie below `limit` deviations before the first that does not.

        And within `alone` narrow scales of the line, on both sides.
        """
        baseline = self.baseline
        assert baseline.fit is not None
        rows, every = self._near(settings), baseline.refit_every(settings)
        starts = range(every - baseline.unfitted, rows + 1, every)
        lines = list(self._lines(starts).each()) if starts else []
        self._errors = [*baseline.errors, *(error for _, _, error in baseline.waiting)]
        self._fits = [(0, baseline.fit)]
        for number, start in enumerate([*starts, rows]):
            self._judge(start, limit, alone)
            if len(self.z) < start or number == len(lines):
                break
            self._fits.append((start, self._fit(lines[number], start, settings)))
        return len(self.z)

    def take(self, rows: int) -> None:
        """Let the baseline have the first `rows`, all of them found calm."""
        baseline, waiting = self.baseline, self.baseline.waiting
        steps = [*baseline.steps, *(step for step, _, _ in waiting), *self.steps[:rows]]
        values = [*baseline.values, *(value for _, value, _ in waiting), *self.values[:rows]]
        size, old = len(baseline.steps), len(baseline.errors)
        if baseline.falling:
            places = [*(abscissa(step) for step, _, _ in waiting), *self.places]
            baseline.history.add_all(places[:rows], values[size : size + rows])
        baseline.steps, baseline.values = steps[rows : rows + size], values[rows : rows + size]
        errors = self._errors[old + rows : old + rows + len(waiting)]
        rest = zip(steps[rows + size :], values[rows + size :], errors, strict=True)
        baseline.waiting = list(rest)
        baseline.errors = self._errors[: old + rows][-ERRORS:]
        start, baseline.fit = max((e for e in self._fits if e[0] <= rows), key=lambda e: e[0])
        baseline.unfitted = rows - start if start else baseline.unfitted + rows

    def _near(self, settings: DetectionSettings) -> int:
        """Rows before the first gap that makes the baseline start anew."""
        if not self.steps:
            return 0
        steps = np.array([*self._old_steps(), *self.steps])
        newest = steps[settings.window + settings.quarantine - 1 : -1]
        reach = np.maximum(newest - steps[: len(newest)], 8)
        far = np.flatnonzero(steps[-len(newest) :] - newest > 3 * reach)
        return int(far[0]) if len(far) else len(self.steps)

    def _old_steps(self) -> list[int]:
        return [*self.baseline.steps, *(step for step, _, _ in self.baseline.waiting)]

    def _lines(self, starts: range) -> Lines:
        """The line of the window as it is after each of `starts` rows."""
        baseline, size = self.baseline, len(self.baseline.steps)
        waiting = [value for _, value, _ in baseline.waiting]
        values = np.array([*baseline.values, *waiting, *self.values])
        places = np.array([*map(abscissa, self._old_steps()), *self.places])
        parts = [slice(start, start + size) for start in starts]
        stacks = [np.array([row[part] for part in parts]) for row in (places, values)]
        return fit_lines(stacks[0], stacks[1], baseline.falling)

    def _fit(self, line: Line, start: int, settings: DetectionSettings) -> Fit:
        entered = len(self.baseline.errors) + start
        errors = self._errors[max(0, entered - ERRORS) : entered]
        return scaled_fit(line, errors, self.baseline.falling, settings.scale_floor)

    def _judge(self, last: int, limit: float, alone: float) -> None:
        """Go on to row `last` with the newest fit, or to the first row that is not calm."""
        fit, first = self._fits[-1][1], len(self.z)
        if first == last or not isfinite(fit.scale):
            return
        end, level, onward, scale = fit.end, fit.level, fit.onward, fit.scale
        ahead = [place - end for place in self.places[first:last]]
        # The operations of Fit.rest and Fit.z in their order, so that no bit differs.
        values = zip(self.values[first:last], ahead, strict=True)
        rests = [value - level - onward * place for value, place in values]
        if ahead[-1] <= fit.reach / 2:
            z = [rest / scale for rest in rests]
        else:
            z = [
                rest / (scale * fit.doubt(place)) for rest, place in zip(rests, ahead, strict=True)
            ]
        # A hair less, so that `Detector.look` decides where a rounding could.
        near = alone * 0.999999 * (fit.narrow / scale)
        most = min(limit, near)
        if not (max(z) < most and min(z) > -near):
            z = z[: next(row for row, one in enumerate(z) if not -near < one < most)]
        self.z += z
        self._errors += rests[: len(z)]
