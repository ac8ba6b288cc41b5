"""The fast path: takes many calm rows at once, with the same bits as row by row.

Law: a stretch is looked at without changing anything, up to the first row that is not calm, and as
much of it as is calm for every signal is then taken. The rest is for the row-by-row path.

Bound: a row needs its value, a multiplication by the slope and a comparison. The lines of a
stretch depend on its rows and not on one another, so those of all signals are fitted in one stack;
their scales depend on the errors of rows that left the quarantine, so they follow in as few steps
as they can.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from spikeguard_server.domain.detection.baseline import ERRORS, Baseline, abscissae, record_z
from spikeguard_server.domain.detection.batch_fits import StretchFits
from spikeguard_server.domain.detection.robust_lines import Array, Lines, fit_lines
from spikeguard_server.domain.detection.settings import DetectionSettings

FEWEST = 16  # rows that are worth a stretch
LONGEST = 1024  # rows of a stretch: what is fitted in vain behind a row that is not calm


def is_ready(baseline: Baseline, settings: DetectionSettings) -> bool:
    """Whether each row that enters pushes out one, and no more is different from row to row."""
    full = len(baseline.steps) == settings.window and len(baseline.errors) == ERRORS
    return full and len(baseline.waiting) == settings.quarantine and baseline.fit is not None


def next_length(length: int, calm: int) -> int:
    """Rows to try next, after `calm` of `length` were taken: little is then fitted in vain."""
    return min(2 * length, LONGEST) if calm == length else max(2 * calm, FEWEST)


@dataclass(slots=True)
class RowBatch:
    """Finite rows of one signal, of steps that increase from the baseline's newest on."""

    baseline: Baseline
    steps: Sequence[int]
    places: Sequence[float]  # abscissae of the steps
    values: Sequence[float]
    z: list[float] = field(default_factory=list)  # of the calm rows, from the first on
    _z: Array = field(default_factory=lambda: np.empty(0))
    _old: list[int] = field(default_factory=list)  # steps of the baseline, waiting ones included
    _rows: Rows | None = None
    _fits: StretchFits | None = None

    def look(
        self, limit: float, settings: DetectionSettings, alone: float = inf, most: int | None = None
    ) -> int:
        """How many rows lie below `limit` deviations before the first that does not.

        And within `alone` narrow scales of the line, on both sides; of the first `most` rows.
        """
        if self._rows is None:
            fit_together([self], settings)
        assert self._rows is not None
        with np.errstate(all="ignore"):
            self._fits = fits = self._rows.fits(self.baseline, most)
            places, values = self._rows.fresh(fits.rows)
            fits.solve(places, values, self.baseline.falling, settings.scale_floor)
            z, scaled = fits.deviations(places), fits.scaled
            # A hair less, so that `Detector.look` decides where a rounding could.
            near = alone * 0.999999 * (scaled.narrow / scaled.scale)
            record = 0.999999 * record_z(scaled.highest, settings)
            high = np.minimum(np.minimum(near, record), limit)
            calm = (z < high[fits.segment]) & (z > -near[fits.segment])
        first = fits.rows if calm.all() else int(calm.argmin())
        self._z = z[:first]
        self.z = self._z.tolist()
        return first

    def gains(self, slack: float, clip: float) -> tuple[list[float], list[int]]:
        """What each calm row adds to a lift, and which rows raise it; the last is their count."""
        gains = np.maximum(np.minimum(self._z, clip) - slack, -clip)
        return gains.tolist(), [*np.flatnonzero(gains > 0.0).tolist(), len(gains)]

    def take(self, rows: int) -> None:
        """Let the baseline have the first `rows`, all of them found calm."""
        fits, laid, baseline = self._fits, self._rows, self.baseline
        assert fits is not None
        assert laid is not None
        size, held = len(baseline.steps), len(baseline.waiting)
        if baseline.falling:
            baseline.history.add_all(*laid.entering(rows))
        steps = [*self._old, *self.steps[:rows]][-size - held :]
        values = laid.values[rows : rows + size + held].tolist()
        end = len(baseline.errors) + rows
        errors = fits.errors[max(0, end - ERRORS) : end + held].tolist()
        baseline.steps, baseline.values, baseline.errors = (
            steps[:size],
            values[:size],
            errors[:-held],
        )
        baseline.waiting = list(zip(steps[size:], values[size:], errors[-held:], strict=True))
        made = bisect_right(fits.starts, rows)
        baseline.unfitted = rows - fits.starts[made - 1] if made else baseline.unfitted + rows
        baseline.fit = fits.fit(made)

    def lay_out(self, settings: DetectionSettings, before: RowBatch | None = None) -> Rows:
        """Its rows behind those of the baseline, with the windows that lines go through.

        `before`: another one that was laid out, maybe of the same steps.
        """
        baseline = self.baseline
        old = self._old = [*baseline.steps, *[step for step, _, _ in baseline.waiting]]
        rows, every = self._near(old), baseline.refit_every(settings)
        waited = [value for _, value, _ in baseline.waiting]
        self._rows = Rows(
            self._abscissae(rows, before),
            np.array([*baseline.values, *waited, *self.values[:rows]]),
            len(old),
            range(every - baseline.unfitted, rows + 1, every),
            len(baseline.steps),
        )
        return self._rows

    def _abscissae(self, rows: int, before: RowBatch | None) -> Array:
        """Of the old rows and of the first `rows` new ones."""
        if before is not None and before._rows is not None:
            known = before._rows.places
            same = before.places is self.places and len(known) == len(self._old) + rows
            if same and before._old == self._old:
                return known
        return np.array([*abscissae(self._old), *self.places[:rows]])

    def _near(self, old: Sequence[int]) -> int:
        """Rows before the first gap that makes the baseline start anew."""
        if not self.steps:
            return 0
        last = self.steps[-1]
        if last - old[-1] == len(self.steps):  # one by one: no gap at all
            return len(self.steps)
        steps = np.array([*old, *self.steps])
        newest = steps[len(old) - 1 : -1]
        reach = np.maximum(newest - steps[: len(newest)], 8)
        far = np.flatnonzero(steps[len(old) :] - newest > 3 * reach)
        return int(far[0]) if len(far) else len(self.steps)


@dataclass(slots=True)
class Rows:
    """The rows of a baseline, those that wait and those of a stretch; arrays of shape (rows,)."""

    places: Array
    values: Array
    old: int  # of the baseline, waiting ones included
    starts: range  # the row of the stretch from which on each line is valid
    size: int  # rows of a window
    lines: Lines | None = None  # one for each of `starts`

    def windows(self) -> tuple[Array, Array]:
        """Of shape (lines, size); views, for reading only."""
        starts, size = self.starts, self.size
        return _windows(self.places, starts, size), _windows(self.values, starts, size)

    def entering(self, rows: int) -> tuple[list[float], list[float]]:
        """Places and values of the rows that enter the baseline with `rows` of the stretch."""
        part = slice(self.size, self.size + rows)
        return self.places[part].tolist(), self.values[part].tolist()

    def fresh(self, rows: int) -> tuple[Array, Array]:
        """Places and values of the first `rows` of the stretch."""
        part = slice(self.old, self.old + rows)
        return self.places[part], self.values[part]

    def fits(self, baseline: Baseline, most: int | None) -> StretchFits:
        """The lines within the stretch, of its first `most` rows, yet without scales."""
        assert baseline.fit is not None
        assert self.lines is not None
        rows, starts, lines = len(self.places) - self.old, self.starts, self.lines
        if most is not None and most < rows:
            rows, starts = most, starts[: bisect_right(starts, most)]
            lines = lines.part(slice(len(starts)))
        errors = [*baseline.errors, *[error for _, _, error in baseline.waiting]]
        blank = np.concatenate((errors, np.zeros(rows)))
        return StretchFits(baseline.fit, lines, starts, blank, rows, len(baseline.waiting))


def fit_together(stretches: Sequence[RowBatch], settings: DetectionSettings) -> None:
    """Fit the lines of several signals in one stack: most of its cost is numpy's for each call."""
    laid = [stretch.lay_out(settings, stretches[0]) for stretch in stretches]
    windows = [rows.windows() for rows in laid]
    counts = [len(rows.starts) for rows in laid]
    falling = np.repeat([stretch.baseline.falling for stretch in stretches], counts)
    with np.errstate(all="ignore"):
        places, values = map(np.concatenate, zip(*windows, strict=True))
        lines = fit_lines(places, values, falling)
    end = 0
    for rows, count in zip(laid, counts, strict=True):
        rows.lines, end = lines.part(slice(end, end + count)), end + count


def _windows(rows: Array, starts: range, size: int) -> Array:
    """`size` of `rows` from each of `starts` on; a view, for reading only."""
    (stride,) = rows.strides
    view = np.ndarray(
        (len(starts), size),
        rows.dtype,
        rows,
        offset=starts.start * stride,
        strides=(starts.step * stride, stride),
    )
    view.flags.writeable = False
    return view
