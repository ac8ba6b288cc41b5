"""Other rules for loss spikes over many drawn curves at once, each with one threshold.

A rule takes losses of shape (curves, rows) and a threshold, and returns where it would alarm, the
same shape. Those of `benchmarks.detection_rules` that judge the loss alone stand here by column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[np.float64]
Alarms = NDArray[np.bool_]
EPISODE_GAP = 25  # rows between two alarms that are two


def _moments(losses: Array, size: int, least: int) -> tuple[Array, Array]:
    """Mean and standard deviation of up to `size` rows before each row; NaN below `least` rows.

    Sums are taken of differences to the first row, so that thousands lose no digits.
    """
    rows = losses.shape[1]
    apart = losses - losses[:, :1]
    sums = np.cumsum(np.pad(apart, ((0, 0), (1, 0))), axis=1)
    squares = np.cumsum(np.pad(apart * apart, ((0, 0), (1, 0))), axis=1)
    at = np.arange(rows)
    first = np.maximum(0, at - size)
    count = np.where(at >= least, at - first, np.nan)
    mean = (sums[:, at] - sums[:, first]) / count
    square = (squares[:, at] - squares[:, first]) - count * mean * mean
    deviation = np.sqrt(np.maximum(square, 0.0) / (count - 1))
    return mean + losses[:, :1], deviation


def _z(losses: Array, mean: Array, deviation: Array) -> Array:
    """Deviations above the mean; NaN, which is above nothing, where there is no spread."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(deviation > 0.0, (losses - mean) / deviation, np.nan)


def olmo_core(losses: Array) -> Array:
    """Mean and deviation of the last 128 rows, from 64 on."""
    return _z(losses, *_moments(losses, 128, 64))


def wandb(losses: Array) -> Array:
    """Mean and deviation of the last 30 rows."""
    return _z(losses, *_moments(losses, 30, 30))


def textbook(losses: Array) -> Array:
    """Mean and deviation of the last 64 rows, from 16 on."""
    return _z(losses, *_moments(losses, 64, 16))


def robust_z(losses: Array) -> Array:
    """Median and MAD of the last 16 rows."""
    z = np.full(losses.shape, np.nan)
    window = sliding_window_view(losses, 16, axis=1)[:, :-1]
    middle = np.median(window, axis=2)
    mad = np.median(np.abs(window - middle[:, :, None]), axis=2)
    z[:, 16:] = _z(losses[:, 16:], middle, 1.4826 * mad)
    return z


def metaseq(losses: Array, threshold: float) -> Alarms:
    """Above `threshold` times the exponential mean of span 9, which no such row enters; nothing
    where that mean is not above zero, since there it would alarm at every row."""
    mean, alarms = losses[:, 0].copy(), np.zeros(losses.shape, dtype=bool)
    for row in range(losses.shape[1]):
        loss = losses[:, row]
        alarms[:, row] = out = (loss > threshold * mean) & (mean > 0.0)
        mean = np.where(out, mean, 0.8 * mean + 0.2 * loss)
    return alarms


def holt(losses: Array, threshold: float) -> Alarms:
    """Holt's linear filter (0.3 for the level, 0.05 for its slope); errors in deviations of their
    own exponential variance (0.05); a row that is out enters neither. From 16 rows on."""
    level, slope = losses[:, 0].copy(), np.zeros(len(losses))
    variance = np.zeros(len(losses))
    alarms = np.zeros(losses.shape, dtype=bool)
    for row in range(1, losses.shape[1]):
        expected = level + slope
        error = losses[:, row] - expected
        out = (error > threshold * np.sqrt(variance)) & (row >= 16)
        alarms[:, row] = out
        moved = np.where(out, expected, expected + 0.3 * error)
        slope = np.where(out, slope, slope + 0.05 * (moved - level - slope))
        level = moved
        part = max(0.05, 1.0 / row)
        variance = np.where(out, variance, (1.0 - part) * variance + part * error * error)
    return alarms


def ewma(losses: Array, threshold: float) -> Alarms:
    """Exponential mean and variance (0.05), which no row that is out enters. From 16 rows on."""
    mean, variance = losses[:, 0].copy(), np.zeros(len(losses))
    alarms = np.zeros(losses.shape, dtype=bool)
    for row in range(1, losses.shape[1]):
        error = losses[:, row] - mean
        out = (error > threshold * np.sqrt(variance)) & (row >= 16)
        alarms[:, row] = out
        part = max(0.05, 1.0 / (row + 1))
        mean = np.where(out, mean, mean + part * error)
        variance = np.where(out, variance, (1.0 - part) * (variance + part * error * error))
    return alarms


@dataclass(frozen=True, slots=True)
class Rival:
    """One rule, with the threshold that it is published with.

    `score` gives deviations that do not depend on the threshold; `rule` is one that lets a row
    that is out enter nothing, so that it does.
    """

    threshold: float
    score: Callable[[Array], Array] | None = None
    rule: Callable[[Array, float], Alarms] | None = None
    least: float = 0.5  # threshold from which one is searched,
    most: float = 1e6  # and up to which

    def alarms(self, losses: Array) -> Callable[[float], Alarms]:
        """Where it alarms, by threshold."""
        if self.rule is not None:
            rule = self.rule
            return lambda threshold: rule(losses, threshold)
        assert self.score is not None
        score = self.score(losses)
        return lambda threshold: score > threshold


RIVALS: dict[str, Rival] = {
    "OLMo-core, 6 sigma of 128": Rival(6.0, score=olmo_core),
    "metaseq, ratio 1.2": Rival(1.2, rule=metaseq, least=1.001, most=1e3),
    "Holt's filter, z 6": Rival(6.0, rule=holt),
    "W&B, z 3 of 30": Rival(3.0, score=wandb),
    "robust z 6 of 16": Rival(6.0, score=robust_z),
    "textbook z 3 of 64": Rival(3.0, score=textbook),
    "ewma, z 4": Rival(4.0, rule=ewma),
}


def episodes(alarms: Alarms) -> int:
    """How many times it speaks up; alarms less than `EPISODE_GAP` rows apart are one."""
    curves, rows = np.nonzero(alarms)
    if not len(rows):
        return 0
    anew = (np.diff(curves) != 0) | (np.diff(rows) > EPISODE_GAP)
    return 1 + int(anew.sum())


def threshold_at(rival: Rival, calm: Array, most: float) -> tuple[float, int]:
    """The least threshold with at most `most` episodes on calm curves, by bisection, and how many
    there are."""
    alarms, low, high = rival.alarms(calm), rival.least, rival.most
    found = episodes(alarms(high))
    while high - low > 1e-3 * high:
        middle = float(np.sqrt(low * high))
        if (count := episodes(alarms(middle))) <= most:
            high, found = middle, count
        else:
            low = middle
    return high, found


def sees(alarms: Alarms, onset: int, within: int) -> NDArray[np.int64]:
    """Delay in rows of the first alarm from `onset` on, -1 where there is none within; (curves,)"""
    part = alarms[:, onset : onset + within + 1]
    delays: NDArray[np.int64] = np.where(part.any(axis=1), part.argmax(axis=1), -1)
    return delays
