"""Loss curves whose truth is known: a shape, a spacing, a noise, and one or two drawn events.

A *deviation* is the robust standard deviation of the noise (1.4826 times its MAD): of white and
autocorrelated noise the marginal standard deviation, of Student's t with 3 degrees of freedom 1.13
times its scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SPACINGS = (1, 10, 100, 500)  # steps from row to row
NOISES = ("white", "ar1", "student", "multiplicative")
PARTS = (0.005, 0.01, 0.02, 0.05)  # of the level: one deviation
PLACES = (12, 24, 50, 100, 300, 1000, 2000)  # rows at which events begin
EARLY = (5, 8)  # places that are told of, but held to no bar
SIZES = (4.0, 6.0, 10.0, 20.0, 40.0, 100.0)  # deviations
LENGTHS = (1, 2, 3, 8, 30, 100, 300)  # rows
AFTER = 700  # rows that follow an event
T3_DEVIATION = 1.1343  # robust standard deviation of Student's t with 3 degrees


def _flat(row: Array) -> Array:
    return np.full(len(row), 2.0)


def _power(row: Array) -> Array:
    return 1.7 + 9.0 * (row + 1.0) ** -0.35


def _exponential(row: Array) -> Array:
    return 1.2 + 8.0 * np.exp(-row / 60.0)


def _hump(row: Array) -> Array:
    return 2.2 + 6.0 * (row + 1.0) ** -0.5 + 0.25 * np.exp(-(((row - 90.0) / 40.0) ** 2))


def _cosine(row: Array) -> Array:
    return 2.4 + 0.4 * (1.0 + np.cos(np.pi * np.minimum(row, 3000.0) / 3000.0))


def _classification(row: Array) -> Array:
    return 0.05 + 2.25 * np.exp(-row / 250.0)


def _sums(row: Array) -> Array:
    return 2000.0 + 9000.0 * (row + 1.0) ** -0.4


def _below_zero(row: Array) -> Array:
    return 3.0 - 1.1 * np.log(row + 1.0)


def _zero_then_noise(row: Array) -> Array:
    return np.zeros(len(row))


def _stairs(row: Array) -> Array:
    epoch = np.floor(row / 180.0)
    return 1.4 + 1.6 * 0.8**epoch + 0.0002 * (row - 180.0 * epoch)


SHAPES: dict[str, Callable[[Array], Array]] = {
    "flat": _flat,
    "power law": _power,
    "exponential": _exponential,
    "warm-up hump": _hump,
    "cosine": _cosine,
    "classification": _classification,
    "sums": _sums,
    "below zero": _below_zero,
    "zero then noise": _zero_then_noise,
    "stairs": _stairs,
}
ZERO_ROWS = 8  # of the shape that begins with exact zeros


@dataclass(frozen=True, slots=True)
class Curve:
    """One drawn curve. Arrays of shape (rows,)."""

    steps: NDArray[np.int64]
    values: Array
    base: Array  # without noise and event
    deviation: Array  # one deviation of the noise, at each row
    shape: str
    noise: str
    event: str  # "none" or a name of `EVENTS`
    onset: int  # row; -1 where there is no event
    size: float  # deviations
    length: int  # rows
    second: int = -1  # row of the second event


def noise_of(kind: str, rows: int, draw: np.random.Generator) -> Array:
    """Noise of one deviation, shape (rows,)."""
    if kind == "student":
        return draw.standard_t(3, rows) / T3_DEVIATION
    white = draw.standard_normal(rows)
    if kind != "ar1":
        return white
    part = 0.7
    noise = np.empty(rows)
    noise[0] = white[0]
    for row in range(1, rows):
        noise[row] = part * noise[row - 1] + math.sqrt(1.0 - part * part) * white[row]
    return noise


def calm(
    shape: str, noise: str, part: float, spacing: int, rows: int, draw: np.random.Generator
) -> Curve:
    """A curve without an event."""
    row = np.arange(rows, dtype=np.float64)
    base = SHAPES[shape](row)
    if shape == "zero then noise":
        deviation = np.full(rows, 0.2 * part)
    elif noise == "multiplicative":
        deviation = part * np.maximum(np.abs(base), 0.05)
    else:
        deviation = np.full(rows, part * max(abs(float(np.median(base))), 0.05))
    values = base + deviation * noise_of(noise, rows, draw)
    if shape == "zero then noise":
        values[:ZERO_ROWS] = 0.0
    steps = (np.arange(rows) + 1) * spacing
    return Curve(steps, values, base, deviation, shape, noise, "none", -1, 0.0, 0)


def _heal(after: Array, length: int) -> Array:
    return np.where(after < length, 1.0, np.exp(-(after - length) / max(2.0, length / 6.0)))


def _climb(after: Array, length: int) -> Array:
    return np.minimum(1.0, (after + 1.0) / max(length, 1))


def with_event(
    curve: Curve, event: str, onset: int, size: float, length: int, guess: float = 10.8
) -> Curve:
    """`curve` with an event drawn on it from row `onset` on.

    `size` is the height in deviations, `length` the rows that it lasts, or climbs. `guess` is the
    level of guessing, where a divergence ends.
    """
    values = curve.values.copy()
    after = np.arange(len(values) - onset, dtype=np.float64)
    height = size * float(np.median(curve.deviation[max(0, onset - 8) : onset + 1]))
    tail = slice(onset, None)
    if event in ("heal", "outlier", "second"):
        values[tail] += height * _heal(after, 1 if event == "outlier" else length)
        if event == "outlier":
            values[onset + 1 :] = curve.values[onset + 1 :]
    elif event == "linger":
        values[tail] += height * np.maximum(0.5, _heal(after, length))
    elif event == "diverge":
        far = max(height, guess - float(curve.base[onset]))
        values[tail] += far * _climb(after, length)
    elif event == "blow-up":
        values[tail] += height * 10.0 ** np.minimum(after, 12.0)
    elif event == "slow rise":
        values[tail] += height * _climb(after, length)
    elif event == "nan":
        values[onset : onset + length] = np.nan
    elif event == "zero":
        values[tail] = 0.0
    second = -1
    if event == "second":
        second = onset + length + 250
        rest = np.arange(len(values) - second, dtype=np.float64)
        values[second:] += height * _heal(rest, length)
    return Curve(
        curve.steps, values, curve.base, curve.deviation, curve.shape, curve.noise,
        event, onset, size, length, second,
    )  # fmt: skip
