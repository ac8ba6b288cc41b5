"""How noisy rows are: the noise by itself, by what rows lie wider than it, and how much their level
moves from block to block. What rows look like to their baseline, one by one and block by block.

Each look is of the newest rows or blocks; a batch is looked at in one go, at its blocks' ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NORMAL_MAD = 1.4826  # robust standard deviation of normal noise over its MAD
LOCAL = 8  # rows of the level
NOISE = 48  # differences of the noise
BLOCK = 16  # rows between two looks at the scale
BLOCKS = 32  # newest blocks, which say what is usual,
FEWEST_BLOCKS = 2  # and the fewest that do
RATIOS = 96  # newest residuals that widen the noise
YOUNG = 64  # rows until z counts in full
MOST_WIDER = 3.0  # of the noise, at most
FEWEST_MIDDLE = 24  # residuals whose quartiles tell how wide they lie
NORMAL_MIDDLE = 1.349  # deviations between the quartiles of normal noise
EVEN_WIDTH = 1.25  # deviations: as wide as independent rows lie about a median of 8, and some more
MOST_TAIL = 10.0
ON_GRID = 0.01  # steps by which a rounded row may miss a multiple of its step
FEWEST_STEPS = 4  # moves that show it: one that never moves, and jumps, is not rounded
ORDERS = 1, 3  # of differences: a descent enlarges the first, and of few rows the third say less
MOVES_PART, NORMAL_MOVES = 2 / 3, 0.434  # of the moves, and their mean where noise is normal
FIT_NEWEST, FIT_FEWEST = 0.8, 16  # part of few rows that a parabola is fitted to, and fewest rows
FIT_PART = 0.9  # of the deviation about it that counts
FIT_MOST = 2.5  # times the noise by third differences: else the course has another shape
FIT_LOGS = 2.0  # times the smallest row: a larger fall may be a curve of logarithms
LEAST_FREE = 0.05  # of a row's variance: the first row is nearly on any fit
FEWEST_MOVES = 4  # of the level that tell how much it wanders about its course
FEW_MOVES = 2.0  # few moves say little: times 1 + 2 / moves
NORMAL_90 = 1.2816  # quantile of the normal distribution
TOP_QUANTILE, NORMAL_TOP = 0.6, 1.861  # of the highest of 16 rows, and where noise is normal
_UNKNOWN = np.full(RATIOS, np.nan)


class Block(NamedTuple):
    """What 16 calm rows showed. Heights are residuals over the noise."""

    noise: float
    measured: float  # noise that was known at its begin, by the newest rows alone
    top: float  # the highest row
    bottom: float  # the lowest
    alone: float  # the lowest below its neighbours
    pair: float  # the highest of lower rows of neighbours
    lift: float  # the highest lift, in the signal's unit,
    long_lift: float  # and the highest of 16 rows
    level: float  # at its end
    step: int  # at its end


class End(NamedTuple):
    """A block that ends among judged rows, and what holds for the rows after it."""

    rows: int  # judged, up to its end
    noise: float
    measured: float  # the noise of the newest rows alone
    wider: float  # by which rows lie wider than the noise
    block: Block

    @property
    def deviation(self) -> float:
        return self.noise * self.wider


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows as they stand to the baseline, each as if all before it were calm; shape (rows,)."""

    values: Array
    level: Array
    scale: Array
    z: Array
    lift: Array  # median of the 8 rows before, above the 32 before these; -inf while unknown
    long_lift: Array  # the same of 16 rows
    ratio: Array  # residual over noise
    ends: Sequence[End]  # blocks that end within, by rows


def told_z(z: float) -> str:
    """Deviations in words: one digit behind the point, from 100 on none."""
    return f"{z:,.0f}" if abs(z) >= 100.0 else f"{z:.1f}"


def median(values: Sequence[float]) -> float:
    """The median of finite values; of none it is NaN."""
    if not values:
        return math.nan
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def medians(values: Array) -> Array:
    """Medians of the rows of an array."""
    ordered, half = np.sort(values, axis=1), values.shape[1] // 2
    if values.shape[1] % 2:
        return ordered[:, half]
    return (ordered[:, half - 1] + ordered[:, half]) / 2


def windows(line: Array, size: int, first: int, rows: int, every: int = 1) -> Array:
    """The `size` values before each of `rows` places in `line`, from `first` on and `every` so many
    apart: a view, shape (rows, size). The line's values lie one beside the other."""
    offset, width = (first - size) * line.itemsize, line.itemsize
    return np.ndarray((rows, size), line.dtype, line, offset, (every * width, width))


def newest_medians(values: Sequence[float], most: int, looks: int) -> Array:
    """Medians of the newest `most` values, or of fewer, at each of the last `looks` places."""
    ends = _last(len(values), looks)
    ordered = np.sort(_newest(np.array(values), ends, most), axis=1)
    at, known = np.arange(looks), np.minimum(ends, most)
    high = ordered[at, known // 2]
    found: Array = np.where(known % 2, high, (ordered[at, known // 2 - 1] + high) / 2)
    return found


def _quantiles(ordered: Array, known: NDArray[np.int64], parts: Sequence[float]) -> Array:
    """Of each row's first `known` ordered values the lower of the two that a quantile lies between,
    shape (parts, rows)."""
    at = np.multiply.outer(parts, np.maximum(known - 1, 0)).astype(np.int64)
    found: Array = ordered[np.arange(len(ordered)), at]
    return found


def _moves(rows: Array, order: int) -> Array:
    """Sizes of the differences of rows of this order, as of the deviation of independent rows."""
    for _ in range(order):
        rows = rows[1:] - rows[:-1]
    moves: Array = np.abs(rows) / math.sqrt(math.comb(2 * order, order))
    return moves


def _deviations(moves: Array) -> Array:
    """Deviations of the noise whose moves these are, shape (looks, moves): by the mean of the
    smaller ones, so that a row that stands out hardly counts."""
    kept = math.ceil(MOVES_PART * moves.shape[1])
    sums: Array = np.sort(moves, axis=1)[:, :kept].sum(axis=1)
    deviations: Array = sums / kept / NORMAL_MOVES
    return deviations


@dataclass(frozen=True, slots=True)
class Course:
    """Where few rows are heading, by a curve fitted to them."""

    ahead: float = -math.inf  # the next row
    fall: float = 0.0  # change to it, at most 0


def noise_of(rows: Array) -> float:
    """Standard deviation of rows about their course, at least that of their rounding."""
    by_rounding = float(_rounding(rows[None, -NOISE:])[0])
    of = [float(_deviations(_moves(rows, order)[None, -NOISE:])[0]) for order in ORDERS]
    return max(by_rounding, min(of))


def noise_of_few(rows: Array) -> tuple[float, Course]:
    """The same of the first rows, by a curve fitted to them, or to their logarithms where they fell
    far, if they follow one; and where that leads."""
    third = float(_deviations(_moves(rows, ORDERS[-1])[None, -NOISE:])[0])
    deviation, course = _fit(rows)
    if 0.0 < FIT_LOGS * rows.min() < rows.max():
        part, of_logs = _fit(np.log(rows))
        here, ahead = np.exp([of_logs.ahead - of_logs.fall, of_logs.ahead]).tolist()
        if part * ahead < deviation:
            deviation, course = part * ahead, Course(ahead, ahead - here)
    if not FIT_PART * deviation < FIT_MOST * third:
        return noise_of(rows), Course()
    by_rounding = float(_rounding(rows[None, -NOISE:])[0])
    return max(by_rounding, FIT_PART * deviation), course


def _fit(rows: Array) -> tuple[float, Course]:
    """Deviation of the newest rows about the parabola, in the logarithm of a row's number, that
    fits them best; and the course along it."""
    curves, free, ahead = _parabolas(len(rows))
    newest = rows[-len(curves) :]
    parts = curves.T @ newest
    rest = np.abs(newest - curves @ parts) / free
    here, then = float(curves[-1] @ parts), float(ahead @ parts)
    return float(_deviations(rest[None])[0]), Course(then, min(0.0, then - here))


@lru_cache(2 * NOISE)
def _parabolas(count: int) -> tuple[Array, Array, Array]:
    """Of so many rows: three orthonormal curves that make up any parabola in the logarithm of a
    row's number, shape (newest rows, 3); the part of a deviation that is left of each row about the
    one that fits best; and the three at the next row."""
    newest = min(count, max(FIT_FEWEST, math.ceil(FIT_NEWEST * count)))
    numbers = np.log(np.arange(count - newest + 1.0, count + 2.0))
    powers = np.vander(numbers / numbers[-1], 3)
    curves, made_of = np.linalg.qr(powers[:-1])
    ahead: Array = np.linalg.solve(made_of.T, powers[-1])
    return curves, np.sqrt(np.maximum(LEAST_FREE, 1.0 - (curves**2).sum(axis=1))), ahead


def _rounding(rows: Array) -> Array:
    """Standard deviation of the rounding of rows, shape (looks, rows), of which each look is of
    multiples of one step, as printed with few digits; else 0."""
    moves = np.abs(rows[:, 1:] - rows[:, :-1])
    step = np.where(moves > 0.0, moves, np.inf).min(axis=1)
    steps = moves / step[:, None]
    rounded = (np.abs(steps - np.rint(steps)) < ON_GRID).all(axis=1)
    rounded &= (moves > 0.0).sum(axis=1) >= FEWEST_STEPS
    return np.where(rounded, step / math.sqrt(12.0), 0.0)


@dataclass(frozen=True, slots=True)
class Moves:
    """How the level of a loss usually moves, by the newest blocks."""

    lift: float = 0.0  # the highest of the blocks
    long_lift: float = 0.0
    wander: float = 0.0  # deviation of the moves from block to block about the level's course,
    rise: float = 0.0  # and by what it usually rises

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> Moves:
        """Moves between the levels of `blocks`; none while too few are known."""
        if len(blocks) < FEWEST_BLOCKS:
            return cls()
        levels = [block.level for block in blocks]
        moves = sorted(after - before for before, after in pairwise(levels))
        few = 1.0 + FEW_MOVES / len(moves)
        up = max(0.0, moves[int(0.9 * len(moves))]) / NORMAL_90
        if len(moves) >= FEWEST_MOVES:
            second = [abs(after - before) for before, after in pairwise(np.diff(levels).tolist())]
            spread = NORMAL_MAD / math.sqrt(3.0) * median(second)
        else:
            usual = moves[len(moves) // 2]
            spread = NORMAL_MAD * median([abs(move - usual) for move in moves])
        lift, long_lift = max(one.lift for one in blocks), max(one.long_lift for one in blocks)
        return cls(lift, long_lift, few * spread, few * up)


def widths(
    ratios: Array, ends: range, blocks: Sequence[Block], noises: Sequence[float]
) -> list[float]:
    """How much wider than the noise rows lie, at each of the `ends`, counted in `ratios`; the last
    of the `blocks` ended there, and the `noises` are known from there on."""
    ordered = np.sort(_newest(ratios, ends, RATIOS), axis=1)
    known = np.minimum(ends, RATIOS)
    wider, high, low = _quantiles(ordered, known, (0.9, 0.75, 0.25))
    middle = np.where(known >= FEWEST_MIDDLE, (high - low) / NORMAL_MIDDLE / EVEN_WIDTH, 1.0)
    wider = np.minimum(MOST_WIDER, np.fmax(1.0, np.fmax(wider / NORMAL_90, middle)))
    wider = np.where(known >= LOCAL, wider, 1.0)
    last = _last(len(blocks), len(ends))
    tops = _newest(np.array([one.top for one in blocks]), last, BLOCKS)
    of_blocks = _newest(np.array([one.noise for one in blocks]), last, BLOCKS)
    tops = np.sort(tops * np.minimum(1.0, of_blocks / np.array(noises)[:, None]), axis=1)
    (tail,) = _quantiles(tops, np.minimum(last, BLOCKS), (TOP_QUANTILE,)) / NORMAL_TOP
    tail = np.where(np.array(last) >= FEWEST_BLOCKS, np.minimum(MOST_TAIL, tail), 1.0)
    both: list[float] = np.maximum(wider, tail).tolist()
    return both


def _last(count: int, looks: int) -> range:
    return range(count - looks + 1, count + 1)


def _newest(values: Array, ends: range, most: int) -> Array:
    """The newest values before each end, `most` columns; NaN where there are fewer."""
    line = np.concatenate([_UNKNOWN[:most], values])
    return windows(line, most, most + ends.start, len(ends), ends.step)


def at_ends(line: Array, known: int, ends: range) -> tuple[Array, Array]:
    """Level and noise at the `ends` of blocks, counted in rows after the `known` ones."""
    first, looks = known + ends[0], len(ends)
    levels = medians(windows(line, LOCAL, first, looks, BLOCK))
    if first < NOISE + 3:  # the run went back: few rows are left
        parts = [line[max(0, known + end - NOISE - 3) : known + end] for end in ends]
        return levels, np.array([noise_of(part) for part in parts])
    by_rounding = _rounding(windows(line, NOISE, first, looks, BLOCK))
    of = [
        _deviations(windows(_moves(line, order), NOISE, first - order, looks, BLOCK))
        for order in ORDERS
    ]
    return levels, np.maximum(by_rounding, np.minimum(*of))
