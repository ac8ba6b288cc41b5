"""Robust straight lines through stacks of windows, many at a time.

Law: every operation is a sort, a choice or an elementwise one, so that a stack of one window and a
stack of a thousand give the same bits; sums, whose order may change, are not used. What overflows
becomes infinite or NaN; the caller has numpy say nothing of it (`np.errstate`), once for all steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

NORMAL_MAD = 1.4826  # standard deviation of a normal variable over its median absolute deviation
TAIL = 0.03  # share of rows that may stand out without being anomalies
LONG = 128  # rows in which the correlation of noise can be told from the bend of a curve
SPLITS = 64  # least rows of a window whose newer half may be taken instead


class Lines(NamedTuple):
    """One line a window; arrays of shape (windows,)."""

    end: Array  # abscissa of the newest row
    reach: Array  # extent of the rows that the line goes through
    level: Array  # of the line at `end`, lifted to its newest quarter if that lies above it
    slope: Array
    spread: Array  # standard deviation around the line, by the middle of the rows
    tail: Array  # the same by the upper tail alone: what is frequent up there is no anomaly
    highest: Array  # how far the highest row lies above the line
    newest_rise: Array  # between the medians of the halves of the newer half, where it slopes
    newest_run: Array  # distance of these medians; 1 where it is flat
    rows: Counts  # how many of the newest rows the line goes through
    alike: Array  # share of neighbours on the same side of the line through the whole window
    median: Array  # of the whole window

    def part(self, windows: slice) -> Lines:
        """Some of them."""
        return Lines._make([column[windows] for column in self])


def fit_lines(places: Array, values: Array, falling: Flags) -> Lines:
    """Fit the newest rows of each window, as many of them as a line fits.

    `places`, `values`: shape (windows, rows), `places` not falling along a window. `falling`, of
    shape (windows,): the slope is never positive.
    """
    found = _lines(places, values, falling, None)
    alike, median = found.alike, found.median
    count = places.shape[1]
    left = np.flatnonzero(~found.fits)
    if len(left):
        alike, median = alike.copy(), median.copy()
    while count >= SPLITS and len(left):
        count //= 2
        newer = places[left, -count:], values[left, -count:]
        found.replace(left, _lines(*newer, falling[left], found.inertia[left]))
        left = left[~found.fits[left]]
    return found.lines(places[:, -1], alike, median)


@dataclass(slots=True)
class _Found:
    first: Array  # abscissa of the oldest row
    centre: Array
    level: Array  # at `centre`
    slope: Array
    spread: Array
    tail: Array
    highest: Array
    bend: Array  # how far the newest quarter lies above the line
    fits: Flags  # oldest and newest quarters lie on it, as far as noise lets them
    newest_rise: Array
    newest_run: Array
    rows: Counts
    alike: Array
    inertia: Array
    median: Array

    def replace(self, which: Counts, by: _Found) -> None:
        for name in _Found.__slots__:
            getattr(self, name)[which] = getattr(by, name)

    def lines(self, end: Array, alike: Array, median: Array) -> Lines:
        return Lines(
            end,
            np.maximum(end - self.first, 1e-9),
            self.level + self.slope * (end - self.centre) + np.maximum(0.0, self.bend),
            self.slope,
            self.spread,
            self.tail,
            self.highest,
            self.newest_rise,
            self.newest_run,
            self.rows,
            alike,
            median,
        )


def _lines(places: Array, values: Array, falling: Flags, inertia: Array | None) -> _Found:
    """The lines through the medians of both halves; a slope counts only where significant.

    `inertia`: of the noise, where it is known from a longer window.
    """
    windows, count = values.shape
    rise, run = _halves(places, values)
    slope, centre = rise / run, middle(places)
    rest, ordered = values, np.sort(values, axis=1)
    median = middle(ordered)
    level, spread = median.copy(), _spread(values, median)
    newest_rise, newest_run = np.zeros(windows), np.ones(windows)
    sloped, tilted = _tilted(places, values, slope, centre, spread, run, inertia, falling)
    if len(sloped):
        rest = values.copy()
        rest[sloped], ordered[sloped] = tilted, np.sort(tilted, axis=1)
        level[sloped] = middle(ordered[sloped])
        spread[sloped] = _spread(tilted, level[sloped])
        newest = places[sloped, -(count // 2) :], values[sloped, -(count // 2) :]
        newest_rise[sloped], newest_run[sloped] = _halves(*newest)
    flat = np.ones(windows, bool)
    flat[sloped] = False
    slope[flat] = 0.0
    alike = _alike(rest, level)
    inertia = _inertia(count)[alike] if inertia is None else inertia
    bend, fits = _ends(rest, level, 0.75 * spread * np.sqrt(inertia))
    return _Found(
        places[:, 0].copy(),
        centre,
        level,
        slope,
        spread,
        _upper_spread(ordered, level),
        ordered[:, -1] - level,
        bend,
        fits,
        newest_rise,
        newest_run,
        np.full(windows, count),
        alike / (count - 1),
        inertia,
        median,
    )


def _tilted(
    places: Array,
    values: Array,
    slope: Array,
    centre: Array,
    spread: Array,
    run: Array,
    inertia: Array | None,
    falling: Flags,
) -> tuple[Counts, Array]:
    """Which windows have a significant slope, and their values without it."""
    count = values.shape[1]
    # Correlated noise only makes a slope less sure: what is flat in white noise is flat.
    able = (run > 0) & ~_is_flat(slope, spread, 1.0, run, count)
    which = np.flatnonzero(able & ~(falling & (slope > 0)))
    if not len(which):
        return which, values[which]
    slope, spread, run = slope[which], spread[which], run[which]
    tilted = values[which] - slope[:, None] * (places[which] - centre[which, None])
    if inertia is None:
        inertia = _inertia(count)[_alike(tilted, middle(np.sort(tilted, axis=1)))]
    else:
        inertia = inertia[which]
    sure = ~_is_flat(slope, spread, inertia, run, count)
    return which[sure], tilted[sure]


def _is_flat(slope: Array, spread: Array, inertia: Array | float, run: Array, count: int) -> Flags:
    """Whether a slope is within what noise makes; the less, the smaller `inertia` is."""
    error = 2.5 * spread * np.sqrt(inertia / count) / run
    return np.asarray(np.abs(slope) < 2.5 * error)


def _ends(rest: Array, level: Array, most: Array) -> tuple[Array, Flags]:
    """How far the newest quarter lies above the line, and whether both ends lie on it."""
    quarter = max(8, rest.shape[1] // 4)
    oldest = middle(np.sort(rest[:, :quarter], axis=1)) - level
    newest = middle(np.sort(rest[:, -quarter:], axis=1)) - level
    return newest, np.maximum(np.abs(oldest), np.abs(newest)) <= most


def middle(ordered: Array) -> Array:
    """Medians of windows whose rows are in order; shape (windows, rows) to (windows,)."""
    half = ordered.shape[1] // 2
    if ordered.shape[1] % 2:
        return ordered[:, half].copy()
    return np.asarray((ordered[:, half - 1] + ordered[:, half]) / 2)


def _alike(rest: Array, level: Array) -> Counts:
    """How many rows lie on the same side of the line as the row before."""
    above = rest > level[:, None]
    return np.asarray((above[:, 1:] == above[:, :-1]).sum(axis=1))


def long_run_variance(share: float) -> float:
    """Variance of sums of AR(1) noise over that of white noise; infinite at a share of 1/2.

    `share`: of neighbours on the same side of the line, beyond one half; arcsin(correlation)/pi of
    Gaussian noise (Sheppard, 1899).
    """
    correlation = math.sin(math.pi * share)
    return (1 + correlation) / (1 - correlation)


@cache
def _inertia(rows: int) -> Array:
    """Long-run variance of the noise by `_alike`, 1 to 3.

    In a short window neighbours are alike by the bend of the curve, and it stays 1.
    """
    if rows < LONG:
        return np.ones(rows)
    shares = [min(max(alike / (rows - 1) - 0.5, 0.0), 0.4) for alike in range(rows)]
    return np.array([min(long_run_variance(share), 3.0) for share in shares])


def _halves(places: Array, values: Array) -> tuple[Array, Array]:
    """Rise and run between the medians of the older and the newer half."""
    half = places.shape[1] // 2
    rise = middle(np.sort(values[:, half:])) - middle(np.sort(values[:, :half]))
    return rise, middle(places[:, half:]) - middle(places[:, :half])


def _spread(values: Array, centre: Array) -> Array:
    return NORMAL_MAD * middle(np.sort(np.abs(values - centre[:, None])))


def _upper_spread(ordered: Array, centre: Array) -> Array:
    """The scale that the upper tail alone shows: what is frequent up there is no anomaly."""
    count = ordered.shape[1]
    rank, tenth = max(2, math.ceil(TAIL * count)), max(3, math.ceil(0.1 * count))
    return np.maximum(
        (ordered[:, -rank] - centre) / _normal_score(rank, count),
        (ordered[:, -tenth] - centre) / _normal_score(tenth, count),
    )


@cache
def _normal_score(rank: int, count: int) -> float:
    """Expected value of the `rank`-th largest of `count` normal variables (Blom)."""
    return NormalDist().inv_cdf(1 - (rank - 0.375) / (count + 0.25))
