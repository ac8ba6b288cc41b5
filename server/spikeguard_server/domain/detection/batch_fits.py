"""Line fits over a block of rows, and the prediction errors of these rows.

Law: the bits of one by one, in as few steps as there have to be. An error needs its line as that
goes on, and where a line falls its bend depends on its scale; a scale needs the errors of rows that
are past the quarantine. Where nothing falls, all errors are known at once.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from spikeguard_server.domain.detection.baseline import ERRORS, Fit, Scales, fit_of, scales
from spikeguard_server.domain.detection.robust_lines import Array, Counts, Lines


@dataclass(slots=True)
class StretchFits:
    """The fit before a stretch, then those made within it; arrays of shape (1 + fits,)."""

    before: Fit
    lines: Lines  # of the fits within
    starts: range  # the row of the stretch from which on each of them is valid
    errors: Array  # of the rows in the baseline, of those that wait, and of the stretch
    rows: int  # of the stretch
    held: int  # rows that wait
    scaled: Scales = field(init=False)
    segment: Counts = field(init=False)  # the fit of each row

    def __post_init__(self) -> None:
        scaled = np.zeros((len(Scales._fields), 1 + len(self.starts)))
        before = self.before
        scaled[:, 0] = before.onward, before.scale, before.narrow, before.highest
        self.scaled = Scales._make(scaled)
        lengths = [end - begin for begin, end in pairwise((0, *self.starts, self.rows))]
        self.segment = np.arange(len(lengths)).repeat(lengths)

    def solve(self, places: Array, values: Array, falling: bool, floor: float) -> None:
        """Find every scale and error."""
        level = np.concatenate(([self.before.level], self.lines.level))
        ahead, above = self.ahead(places), values - level[self.segment]
        bent = np.flatnonzero(self.lines.slope < 0.0) if falling else np.empty(0, int)
        done = scaled = 0
        while done < self.rows or scaled < len(self.starts):
            left = bent[np.searchsorted(bent, scaled) :]
            until = self.starts[left[0]] if len(left) else self.rows
            part = slice(done, until)
            errors = above[part] - self.scaled.onward[self.segment[part]] * ahead[part]
            self.errors[len(self.errors) - self.rows + done :][: until - done] = errors
            done, scaled = until, self._scale(scaled, until + self.held, falling, floor)

    def ahead(self, places: Array) -> Array:
        """How far each row lies beyond its fit's rows."""
        end = np.concatenate(([self.before.end], self.lines.end))
        return np.asarray(places - end[self.segment])

    def deviations(self, places: Array) -> Array:
        """z of each row."""
        reach = np.concatenate(([self.before.reach], self.lines.reach))
        doubt = np.maximum(1.0, 2.0 * self.ahead(places) / reach[self.segment])
        new = self.errors[len(self.errors) - self.rows :]
        return np.asarray(new / (self.scaled.scale[self.segment] * doubt))

    def fit(self, number: int) -> Fit:
        """The fit before at 0, then those within."""
        if not number:
            return self.before
        within = Scales._make([column[1:] for column in self.scaled])
        return fit_of(self.lines, within, number - 1)

    def _scale(self, scaled: int, reach: int, falling: bool, floor: float) -> int:
        """Scale the fits that begin by row `reach`; returns how many then are."""
        last = bisect_right(self.starts, reach)
        if last > scaled:
            before = len(self.errors) - self.rows - self.held
            ends = before + np.array(self.starts[scaled:last])[:, None]
            errors = self.errors[ends - np.arange(ERRORS, 0, -1)]
            every = not scaled and last == len(self.starts)
            lines = self.lines if every else self.lines.part(slice(scaled, last))
            part = slice(1 + scaled, 1 + last)
            for known, found in zip(
                self.scaled, scales(lines, errors, falling, floor), strict=True
            ):
                known[part] = found
        return last
