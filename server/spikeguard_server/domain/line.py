"""Robust straight lines through stacks of windows, many at a time.

Law: every operation is a sort, a choice or an elementwise one, so that a stack of one window and a
stack of a thousand give the same bits; sums, whose order may change, are not used. What overflows
becomes infinite or NaN and raises nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

NORMAL_MAD = 1.4826  # standard deviation of a normal variable over its median absolute deviation
TAIL = 0.03  # share of rows that may stand out without being anomalies
LONG = 128  # rows in which the correlation of noise can be told from the bend of a curve
SPLITS = 64  # least rows of a window whose newer half may be taken instead


class Line(NamedTuple):
    """One of `Lines`, in plain numbers."""

    end: float
    reach: float
    level: float
    slope: float
    spread: float
    tail: float
    newest_rise: float
    newest_run: float
    rows: int
    alike: float
    median: float


@dataclass(frozen=True, slots=True)
class Lines:
    """One line a window; arrays of shape (windows,)."""

    end: Array  # abscissa of the newest row
    reach: Array  # extent of the rows that the line goes through
    level: Array  # of the line at `end`, lifted to its newest quarter if that lies above it
    slope: Array
    spread: Array  # standard deviation around the line, by the middle of the rows
    tail: Array  # the same by the upper tail alone: what is frequent up there is no anomaly
    newest_rise: Array  # between the medians of the halves of the newer half of those rows
    newest_run: Array  # distance of these medians
    rows: npt.NDArray[np.int64]  # how many of the newest rows the line goes through
    alike: Array  # share of neighbours on the same side of the line through the whole window
    median: Array  # of the whole window

    def each(self) -> Iterator[Line]:
        """The lines one by one."""
        return map(
            Line._make, zip(*(getattr(self, name).tolist() for name in Line._fields), strict=True)
        )


def fit_lines(places: Array, values: Array, falling: bool) -> Lines:
    """Fit the newest rows of each window, as many of them as a line fits.

    `places`, `values`: shape (windows, rows), `places` not falling along a window. `falling`: the
    slope is never positive.
    """
    with np.errstate(all="ignore"):
        found = _lines(places, values, falling, None)
        alike, median = found.alike.copy(), found.median.copy()
        count = places.shape[1]
        left = np.arange(len(places))
        while count >= SPLITS and len(left := left[~found.fits[left]]):
            count //= 2
            newer = places[left, -count:], values[left, -count:]
            found.replace(left, _lines(*newer, falling, found.inertia[left]))
        return found.lines(places[:, -1], alike, median)


@dataclass(slots=True)
class _Found:
    first: Array  # abscissa of the oldest row
    centre: Array
    level: Array  # at `centre`
    slope: Array
    spread: Array
    tail: Array
    bend: Array  # how far the newest quarter lies above the line
    fits: npt.NDArray[np.bool_]  # oldest and newest quarters lie on it, as far as noise lets them
    newest_rise: Array
    newest_run: Array
    rows: npt.NDArray[np.int64]
    alike: Array
    inertia: Array
    median: Array

    def replace(self, which: npt.NDArray[np.int64], by: _Found) -> None:
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
            self.newest_rise,
            self.newest_run,
            self.rows,
            alike,
            median,
        )


def _lines(places: Array, values: Array, falling: bool, inertia: Array | None) -> _Found:
    """The lines through the medians of both halves; a slope counts only where significant.

    `inertia`: of the noise, where it is known from a longer window.
    """
    count, half = values.shape[1], values.shape[1] // 2
    rise, run = _halves(places, values)
    sorted_values = np.sort(values)
    median = middle(sorted_values)
    slope = np.where(run > 0, rise / run, 0.0)
    centre = middle(places)
    rest = values - slope[:, None] * (places - centre[:, None])
    ordered = np.sort(rest)
    if inertia is None:
        inertia = _inertia(count)[_alike(rest, middle(ordered))]
    error = 2.5 * _spread(values, median) * np.sqrt(inertia / count) / run
    flat = ~(run > 0) | (np.abs(slope) < 2.5 * error) | (falling & (slope > 0))
    slope[flat], rest[flat], ordered[flat] = 0.0, values[flat], sorted_values[flat]
    level = middle(ordered)
    spread = _spread(rest, level)
    quarter = max(8, count // 4)
    oldest = middle(np.sort(rest[:, :quarter])) - level
    newest = middle(np.sort(rest[:, -quarter:])) - level
    away = np.maximum(np.abs(oldest), np.abs(newest))
    alike = _alike(rest, level) / (count - 1)
    newest_rise, newest_run = _halves(places[:, -half:], values[:, -half:])
    return _Found(
        places[:, 0].copy(),
        centre,
        level,
        slope,
        spread,
        _upper_spread(ordered, level),
        newest,
        away <= 0.75 * spread * np.sqrt(inertia),
        newest_rise,
        newest_run,
        np.full(len(values), count),
        alike,
        inertia,
        median,
    )


def middle(ordered: Array) -> Array:
    """Medians of windows whose rows are in order; shape (windows, rows) to (windows,)."""
    half = ordered.shape[1] // 2
    if ordered.shape[1] % 2:
        return ordered[:, half].copy()
    return (ordered[:, half - 1] + ordered[:, half]) / 2


def _alike(rest: Array, level: Array) -> npt.NDArray[np.int64]:
    """How many rows lie on the same side of the line as the row before."""
    above = rest > level[:, None]
    return np.asarray(np.count_nonzero(above[:, 1:] == above[:, :-1], axis=1))


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
