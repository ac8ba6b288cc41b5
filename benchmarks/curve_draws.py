"""Loss curves whose truth is known, and the draws of `benchmarks.curves`: a shape, a spacing, a
noise, and one or two drawn events.

The constants of detection were chosen on other draws of the shapes in `SHAPES` with the noises in
`NOISES`. Those in `HELD_OUT_SHAPES`, `HELD_OUT_NOISES` were kept apart until the last mends.

A *deviation* is the robust standard deviation of the noise (1.4826 times its MAD): of white and
autocorrelated noise the marginal standard deviation, of Student's t with 3 degrees of freedom 1.13
times its scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SPACINGS = (1, 10, 100, 500)  # steps from row to row
NOISES = ("white", "ar1", "student", "multiplicative")
HELD_OUT_NOISES = ("ar1 of .9",)
AR1 = {"ar1": 0.7, "ar1 of .9": 0.9}  # correlation of neighbours
PARTS = (0.005, 0.01, 0.02, 0.05)  # of the level: one deviation
PLACES = (12, 24, 50, 100, 300, 1000, 2000)  # rows at which events begin
EARLY = (5, 8)  # places that are told of, but held to no bar
SIZES = (4.0, 6.0, 10.0, 20.0, 40.0, 100.0)  # deviations
LENGTHS = (1, 2, 3, 8, 30, 100, 300)  # rows
AFTER = 700  # rows that follow an event
T3_DEVIATION = 1.1343  # robust standard deviation of Student's t with 3 degrees


def _stairs(row: Array) -> Array:
    epoch = np.floor(row / 180.0)
    return 1.4 + 1.6 * 0.8**epoch + 0.0002 * (row - 180.0 * epoch)


SHAPES: dict[str, Callable[[Array], Array]] = {
    "flat": lambda row: np.full(len(row), 2.0),
    "power law": lambda row: 1.7 + 9.0 * (row + 1.0) ** -0.35,
    "exponential": lambda row: 1.2 + 8.0 * np.exp(-row / 60.0),
    "warm-up hump": lambda row: (
        2.2 + 6.0 * (row + 1.0) ** -0.5 + 0.25 * np.exp(-(((row - 90.0) / 40.0) ** 2))
    ),
    "cosine": lambda row: 2.4 + 0.4 * (1.0 + np.cos(np.pi * np.minimum(row, 3000.0) / 3000.0)),
    "classification": lambda row: 0.05 + 2.25 * np.exp(-row / 250.0),
    "sums": lambda row: 2000.0 + 9000.0 * (row + 1.0) ** -0.4,
    "below zero": lambda row: 3.0 - 1.1 * np.log(row + 1.0),
    "zero then noise": lambda row: np.zeros(len(row)),
    "stairs": _stairs,
}


def _warm_restarts(row: Array) -> Array:
    """The learning rate starts anew every 600 rows: the loss rises by 2.5 % in 150 rows, and falls.

    A faster rise would be a lift, which nobody tells from a small spike without the learning rate.
    """
    since = row % 600.0
    rise = np.minimum(1.0, since / 150.0) * np.minimum(1.0, np.exp((150.0 - since) / 150.0))
    return (2.0 + 3.0 * (row + 1.0) ** -0.4) * (1.0 + 0.025 * np.where(row < 600.0, 0.0, rise))


HELD_OUT_SHAPES: dict[str, Callable[[Array], Array]] = {
    "warm restarts": _warm_restarts,
    "annealing": lambda row: (  # the rate is constant and then falls to zero, from row 1,500 on
        2.3 + 7.0 * (row + 1.0) ** -0.45 - 0.25 * np.clip((row - 1500.0) / 700.0, 0.0, 1.0)
    ),
    # a plateau near guessing, then a sudden fall about row 800
    "late insight": lambda row: 0.15 + 2.15 / (1.0 + np.exp((row - 800.0) / 30.0)),
    "perplexity": lambda row: np.exp(2.0 + 7.0 * (row + 1.0) ** -0.45),
    "slow wave": lambda row: (  # the data come in an order: waves of 1,000 rows and 1.5 %
        (2.5 + 2.0 * (row + 1.0) ** -0.5) * (1.0 + 0.015 * np.sin(row * 2.0 * np.pi / 1000.0))
    ),
}
ALL_SHAPES = SHAPES | HELD_OUT_SHAPES
ZERO_ROWS = 8  # of the shape that begins with exact zeros


@dataclass(frozen=True, slots=True)
class Curve:
    """One drawn curve. Arrays of shape (rows,)."""

    steps: NDArray[np.int64]
    values: Array
    base: Array  # without noise and event
    deviation: Array  # one deviation of the noise, at each row
    event: str  # "none" or what `with_event` draws
    onset: int  # row; -1 where there is no event
    size: float  # deviations
    length: int  # rows
    second: int = -1  # row of the second event


def noise_of(kind: str, rows: int, draw: np.random.Generator) -> Array:
    """Noise of one deviation, shape (rows,)."""
    if kind == "student":
        return draw.standard_t(3, rows) / T3_DEVIATION
    white = draw.standard_normal(rows)
    if kind not in AR1:
        return white
    part = AR1[kind]
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
    base = ALL_SHAPES[shape](row)
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
    return Curve(steps, values, base, deviation, "none", -1, 0.0, 0)


def _tail(after: Array, length: int) -> Array:
    """Stays at its height for `length` rows, then falls with a sixth of that."""
    return np.where(after < length, 1.0, np.exp(-(after - length + 1) / max(2.0, length / 6.0)))


def _box(after: Array, length: int) -> Array:
    """Stays at its height for `length` rows, and the next row is as before."""
    return np.where(after < length, 1.0, 0.0)


def _climb(after: Array, length: int) -> Array:
    return np.minimum(1.0, (after + 1.0) / max(length, 1))


def with_event(curve: Curve, event: str, onset: int, size: float, length: int) -> Curve:
    """`curve` with an event drawn on it from row `onset` on.

    `size` is the height in deviations, `length` the rows that it lasts, or climbs. A divergence
    ends where the run began, or at five times the loss before, whichever is higher.
    """
    values = curve.values.copy()
    after = np.arange(len(values) - onset, dtype=np.float64)
    height = size * float(np.median(curve.deviation[max(0, onset - 8) : onset + 1]))
    before = float(curve.base[onset])
    tail = slice(onset, None)
    if event in ("heal", "second"):
        values[tail] += height * _tail(after, length)
    elif event in ("box", "outlier"):
        values[tail] += height * _box(after, 1 if event == "outlier" else length)
    elif event == "linger":
        values[tail] += height * np.maximum(0.5, _tail(after, length))
    elif event == "diverge":
        far = max(height, float(curve.base[0]) - before, 4.0 * abs(before))
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
        values[second:] += height * _tail(rest, length)
    return Curve(
        curve.steps, values, curve.base, curve.deviation, event, onset, size, length, second
    )


# --- the draws ---------------------------------------------------------------------------

CALM_SEED, EVENT_SEED = 7411, 7412
CALM_ROWS = 2_000  # of each calm curve
ALL_NOISES = (*NOISES, *HELD_OUT_NOISES)
APART = "zero then noise"
DRAWS = {  # curves of each event
    "heal": 3_000, "box": 1_500, "outlier": 200, "linger": 400, "diverge": 300, "blow-up": 200,
    "slow rise": 300, "nan": 200, "zero": 200, "second": 300,
}  # fmt: skip
QUICK_PART = 9  # of calm curves and of events, a quick run draws one in so many
FOREVER = 10_000  # rows
Plan = tuple[Sequence[int], Sequence[float], Sequence[int]]  # places, sizes, lengths
USUAL: Plan = ((*EARLY, *PLACES), SIZES, LENGTHS)
SURE = SIZES[2:]
PLANS: dict[str, Plan] = {
    "outlier": ((*EARLY, *PLACES), SIZES, (1,)),
    "linger": (PLACES, SURE, (8, 30, 100)),
    "diverge": (PLACES, SURE, (60, 100, 300)),
    "blow-up": (PLACES, SIZES, (1,)),
    "slow rise": ((300, 1000, 2000), (30.0, 60.0, 100.0), (300, 800, 1500)),
    "nan": ((*EARLY, *PLACES), (math.inf,), (1, 3, 30, FOREVER)),
    "zero": (PLACES, (math.inf,), (FOREVER,)),
    "second": (PLACES, SURE, (3, 8, 30)),
}


@dataclass(frozen=True, slots=True)
class Draw:
    """Everything that a curve is made of."""

    seed: tuple[int, int]
    shape: str
    noise: str
    part: float  # of the level: one deviation
    spacing: int
    rows: int
    event: str = "none"
    onset: int = -1
    size: float = 0.0
    length: int = 0

    @property
    def held_out(self) -> bool:
        """Whether nothing was chosen on such a curve."""
        return self.shape in HELD_OUT_SHAPES or self.noise in HELD_OUT_NOISES

    def curve(self) -> Curve:
        """The same in every process."""
        draw = np.random.default_rng(self.seed)
        curve = calm(self.shape, self.noise, self.part, self.spacing, self.rows, draw)
        if self.event == "none":
            return curve
        return with_event(curve, self.event, self.onset, self.size, self.length)


def calm_draws(quick: bool) -> list[Draw]:
    """Every shape with every noise, part and spacing."""
    cells = list(product(ALL_SHAPES, ALL_NOISES, PARTS, SPACINGS))
    draws = [
        Draw((CALM_SEED, at), shape, noise, part, spacing, CALM_ROWS)
        for at, (shape, noise, part, spacing) in enumerate(cells)
    ]
    return draws[::QUICK_PART] if quick else draws


def event_draws(quick: bool) -> list[Draw]:
    """Events of every kind at random places, of random sizes and lengths."""
    draws = list[Draw]()
    for event, count in DRAWS.items():
        for _ in range(count):
            draws.append(_event_draw(event, len(draws)))
    return draws[::QUICK_PART] if quick else draws


def _event_draw(event: str, at: int) -> Draw:
    draw = np.random.default_rng((EVENT_SEED, at, 1))
    shapes = [*ALL_SHAPES]
    shape = shapes[int(draw.integers(len(shapes)))]
    noise = ALL_NOISES[int(draw.integers(len(ALL_NOISES)))]
    part, spacing = PARTS[int(draw.integers(len(PARTS)))], SPACINGS[int(draw.integers(4))]
    places, sizes, lengths = PLANS.get(event, USUAL)
    place = places[int(draw.integers(len(places)))]
    size = sizes[int(draw.integers(len(sizes)))]
    length = lengths[int(draw.integers(len(lengths)))]
    rows = place + _rows_after(event, length, 60 if spacing > 1 else 500)
    seed = (EVENT_SEED, at)
    return Draw(seed, shape, noise, part, spacing, rows, event, place, size, length)


def _rows_after(event: str, length: int, horizon: int) -> int:
    """As many as it takes until the kind is decided."""
    rows = {
        "heal": 2 * length + horizon, "box": length + horizon, "linger": length + 2 * horizon + 100,
        "diverge": length + 100, "slow rise": length + 200, "second": 2 * length + 350 + horizon,
    }  # fmt: skip
    return rows.get(event, 200)


def is_late(draw: Draw) -> bool:
    """Whether enough rows lie before the event; a loss that begins with zeros begins after them."""
    zeros = ZERO_ROWS if draw.shape == APART else 0
    return draw.onset - zeros >= PLACES[0]


def is_bound(draw: Draw, size: float) -> bool:
    """Whether the bar of recall holds for a spike."""
    return draw.size >= size and draw.length >= 3 and is_late(draw)
