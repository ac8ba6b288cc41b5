"""The draws of `benchmarks.curves`: which curves, with which events.

None of them is one that the constants of detection were chosen on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.curve_families import (
    ALL_SHAPES,
    EARLY,
    HELD_OUT_NOISES,
    HELD_OUT_SHAPES,
    LENGTHS,
    NOISES,
    PARTS,
    PLACES,
    SIZES,
    SPACINGS,
    ZERO_ROWS,
    Curve,
    calm,
    with_event,
)

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
