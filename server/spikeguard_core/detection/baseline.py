"""The baseline of one signal: its local level, and how far its rows usually lie from it.

Everything is counted in calm rows, never in steps. For the next row:

    level  median of the newest 8 rows; of a falling loss, carried on by their slope, and of fewer
           than 64 rows at least where a curve fitted to them leads
    noise  the mean of the smaller two thirds of the first or of the third differences of the
           newest 48 rows, whichever is less, as of independent rows: neither a steep descent nor
           its bend is noise. Of fewer rows their deviation about a fitted curve. At least 0.8 of
           what is usual here, and 0.2 % of the level
    scale  noise times the larger of two factors: how much wider the rows lie about the level
           (autocorrelation, up to 3), and how heavy the upper tail is (up to 10)
    z      (value - level) / scale, and less while fewer than 64 rows are known

Noise and factors are taken anew every 16 rows, so one row and a thousand are judged by the same
arithmetic and give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from spikeguard_core.detection.noise import (
    BLOCK,
    BLOCKS,
    FEWEST_BLOCKS,
    LOCAL,
    RATIOS,
    YOUNG,
    Array,
    Block,
    Course,
    End,
    Judged,
    at_ends,
    median,
    medians,
    newest_medians,
    noise_of,
    noise_of_few,
    widths,
    windows,
)

SHORT = 4  # rows of each median that makes a slope
LAG = (LOCAL + 1) / 2  # rows from the middle of the level's to the next
NEAR = 16  # rows of a long lift
WIDE = 32  # rows before these, which it is seen against
KEPT = 64  # newest rows
MORE_TOP = 10.0  # few blocks say little of the highest row: times 1 + 10 / blocks,
DEEPEST, MORE_BOTTOM = 3, 2.0  # nor do the deepest: times 1 + 2 / blocks,
MORE_ALONE = 1.0  # and 1 + 1 / blocks of rows that lie deep alone
EVEN_TOPS = 1.4  # times the median height of a block: higher tops tell of a tail that goes on
FEWEST_LEFT = 24  # rows that have to be left before an incident
APART = 32  # usual distances of rows: farther apart, a row continues nothing
YOUNG_PART = 1.5  # of few rows z counts less: z / (1 + 1.5 / rows)
LEAST_NOISE = 0.8  # of the usual noise
FLOOR_PART = 0.002  # of the level: the least noise
FLOOR_START, FLOOR_FAR = 0.0005, 0.5  # of the level at which it began, and at most of that here,
MOST_START = 12.0  # as far as a loss by guessing goes, in nats


@dataclass(slots=True)
class Baseline:
    """The newest calm rows of one signal. `values` are logarithms where it is a norm."""

    falling: bool  # a loss: its level is carried on downwards
    drifting: bool = False  # the norm of the weights: its level is carried on, up or down
    floor_part: float = FLOOR_PART  # of the level: the least noise,
    floor: float = 1e-12  # and the least of all
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    count: int = 0  # calm rows since the baseline began
    start: float = 0.0  # largest level among the first rows, without its sign
    noise: float = 0.0
    measured: float = 0.0  # the noise of the newest rows alone
    wider: float = 1.0  # by which rows lie wider than the noise
    course: Course = field(default_factory=Course)  # of fewer than 64 rows
    ratios: list[float] = field(default_factory=list)
    heights: list[float] = field(default_factory=list)  # ratios of the block that is not full yet,
    last: float = 0.0  # the row before it,
    rising: float = 0.0  # the highest lift within it,
    long_rising: float = 0.0  # and the highest of 16 rows
    blocks: list[Block] = field(default_factory=list)

    @property
    def knows(self) -> bool:
        """Whether rows can be judged."""
        return self.count >= LOCAL

    @property
    def settled(self) -> bool:
        """Whether many rows can be judged at once."""
        return self.count >= YOUNG

    @property
    def gap(self) -> float:
        """Median distance of the newest rows, in steps; 1 where it is not known."""
        return max(1.0, float(median(np.diff(self.steps[-LOCAL:]).tolist() or [1.0])))

    @property
    def level(self) -> float:
        """Median of the newest calm rows."""
        return median(self.values[-LOCAL:])

    @property
    def scale(self) -> float:
        """One deviation, for the next row."""
        return self.noise * self.wider

    @property
    def top(self) -> float:
        """Height of the second highest block; more while few blocks are known, and where it lies
        far above most of them."""
        tops = sorted(one.top for one in self.blocks)
        if len(tops) < FEWEST_BLOCKS:
            return math.inf
        high = tops[-1] if len(tops) < BLOCKS // 4 else tops[-2]
        tail = max(1.0, high / (EVEN_TOPS * max(1.0, median(tops))))
        return high * tail * (1.0 + MORE_TOP / len(tops))

    @property
    def bottom(self) -> float:
        """Mean depth of the three deepest blocks, and more while few blocks are known."""
        return self._depth([one.bottom for one in self.blocks], MORE_BOTTOM)

    @property
    def alone(self) -> float:
        """The same of rows that lie deep alone: those of a fall all do."""
        return self._depth([one.alone for one in self.blocks], MORE_ALONE)

    @property
    def pair(self) -> float:
        """The highest of lower rows of neighbours."""
        known = self.blocks if len(self.blocks) >= FEWEST_BLOCKS else []
        return max((one.pair for one in known), default=0.0)

    def is_apart(self, step: int) -> bool:
        """Whether a row at `step` comes so late that it continues nothing: the log's spacing
        changed, or most of a stretch is missing."""
        return len(self.steps) >= LOCAL and bool(self.are_apart(np.array([step]))[0])

    def are_apart(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The same of each of rising `steps` after the one before it; only while `settled`."""
        apart: NDArray[np.bool_] = np.diff(steps, prepend=self.steps[-1]) >= APART * self.gap
        return apart

    def judge(self, values: Array, held: int = 0) -> Judged:
        """Judge rows that follow, `held` rows after the newest known; more than one row only while
        `settled`."""
        known, rows = len(self.values), len(values)
        line = np.concatenate([self.values, values])
        level = middle = medians(windows(line, LOCAL, known, rows))
        if (self.falling or self.drifting) and known >= 3 * SHORT:
            level = level + LAG * self._slope(line, known, rows)
        if self.falling:
            level = np.maximum(level, self.course.ahead) + held * self.course.fall
        lift, long_lift = self._lifts(line, known, middle)
        scale, noise, ends = self._scales(line, known, level, lift, long_lift)
        rest = values - level
        if not self.settled:
            scale = scale * (1.0 + YOUNG_PART / max(self.count, 1))
        return Judged(values, level, scale, rest / scale, lift, long_lift, rest / noise, ends)

    def take(self, steps: Sequence[int], judged: Judged, rows: int) -> None:
        """Keep the first `rows` of judged rows as calm."""
        self.steps = [*self.steps, *steps[:rows]][-KEPT:]
        self.values = [*self.values, *judged.values[:rows].tolist()][-KEPT:]
        self.ratios = [*self.ratios, *judged.ratio[:rows].tolist()][-RATIOS:]
        self.count += rows
        ended = [end for end in judged.ends if end.rows <= rows]
        begin = ended[-1].rows if ended else 0
        if ended:
            blocks = [end.block._replace(step=steps[end.rows - 1]) for end in ended]
            self.blocks = [*self.blocks, *blocks][-BLOCKS:]
            _, self.noise, self.measured, self.wider, _ = ended[-1]
            self.last = float(judged.ratio[begin - 1])
            self.heights, self.rising, self.long_rising = [], 0.0, 0.0
        if begin < rows:
            self.heights = [*self.heights, *judged.ratio[begin:rows].tolist()]
            self.rising = max(self.rising, float(judged.lift[begin:rows].max()))
            self.long_rising = max(self.long_rising, float(judged.long_lift[begin:rows].max()))
        if self.count <= YOUNG:
            self._look_at_scale()

    def learn(self, step: int, value: float) -> None:
        """Keep a row that cannot be judged yet."""
        self.steps, self.values = [*self.steps, step][-KEPT:], [*self.values, value][-KEPT:]
        self.count += 1
        self.heights = [0.0] * (self.count % BLOCK)
        if self.falling:
            self.start = max(self.start, abs(value))
        if self.count >= LOCAL:
            self._look_at_scale()

    def restart(self) -> None:
        """Forget every row."""
        fresh = Baseline(self.falling, self.drifting, self.floor_part, self.floor)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))

    def begin(self, onset_step: int) -> None:
        """An incident began: its rows are not usual."""
        if sum(1 for step in self.steps if step < onset_step) >= FEWEST_LEFT:
            self.cut(onset_step)
        self.rising = self.long_rising = 0.0

    def settle(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """An incident is over, and these rows show where the signal is now.

        What is known goes on at their level, as noisy as before; of a young baseline only they are
        kept, as its idea of the noise may be what was wrong.
        """
        if self.count < YOUNG:
            start = self.start
            self.restart()
            self.start = start
            for step, value in zip(steps, values, strict=True):
                self.learn(step, value)
            return
        shift = median(values) - self.level
        late = max(0, steps[0] - 1 - self.steps[-1])
        self.values = [value + shift for value in self.values]
        self.steps = [known + late for known in self.steps]
        self.blocks = [block._replace(level=block.level + shift) for block in self.blocks]
        for step, value in zip(steps, values, strict=True):
            self.take([step], self.judge(np.array([value])), 1)

    def cut(self, step: int) -> None:
        """Forget the rows at `step` and later: the run went back."""
        keep = sum(1 for known in self.steps if known < step)
        if keep == len(self.steps):
            return
        if keep >= LOCAL:
            del self.steps[keep:], self.values[keep:]
            return
        before = [block for block in self.blocks if block.step < step]
        if not before:
            self.restart()
            return
        # The rows of then are forgotten, but not their level.
        back, shift = self.steps[-1] - before[-1].step, before[-1].level - self.level
        self.steps = [known - back for known in self.steps]
        self.values = [value + shift for value in self.values]

    def before(self, rows: int) -> list[tuple[int, float]]:
        """The newest calm rows, with their steps."""
        return list(zip(self.steps[-rows:], self.values[-rows:], strict=True))

    def _depth(self, depths: Sequence[float], more: float) -> float:
        if len(depths) < FEWEST_BLOCKS:
            return math.inf
        deepest = sorted(depths)[:DEEPEST]
        return max(1.0, -sum(deepest) / len(deepest)) * (1.0 + more / len(depths))

    def _slope(self, line: Array, known: int, rows: int) -> Array:
        """Change a row, of a loss at most 0: the flattest of the slopes between medians of 4 rows,
        so that neither a single fall nor a bend is carried on; 0 where they differ in sign."""
        pieces = min(4, known // SHORT)
        back = pieces * SHORT
        near = line[known - back :]
        four = [near[at : at + rows + back - SHORT] for at in range(SHORT)]
        ends = np.maximum(np.maximum(four[0], four[1]), np.maximum(four[2], four[3]))
        ends = ends + np.minimum(np.minimum(four[0], four[1]), np.minimum(four[2], four[3]))
        middle = (four[0] + four[1] + four[2] + four[3] - ends) / 2
        at = [middle[(pieces - 1 - piece) * SHORT :][:rows] for piece in range(pieces)]
        last = [line[known - back_by :][:rows] for back_by in range(1, SHORT + 1)]
        slopes = [(last[0] + last[1] - last[2] - last[3]) / SHORT]
        slopes += [(newer - older) / SHORT for newer, older in pairwise(at)]
        change: Array = np.minimum(reduce(np.maximum, slopes), 0.0)
        return change + np.maximum(reduce(np.minimum, slopes), 0.0) if self.drifting else change

    def _lifts(self, line: Array, known: int, middle: Array) -> tuple[Array, Array]:
        """By how much the `middle` of the newest 8 rows, and that of 16, lies above that of the
        rows before these."""
        rows, unknown = len(middle), np.full(len(middle), -np.inf)
        if not self.falling or known < NEAR + WIDE:
            return unknown, unknown
        before = medians(windows(line, WIDE, known - NEAR, rows + NEAR - LOCAL))
        wide = medians(windows(line, NEAR, known, rows))
        return middle - before[NEAR - LOCAL :], wide - before[:rows]

    def _scales(
        self, line: Array, known: int, level: Array, lift: Array, long_lift: Array
    ) -> tuple[Array, Array, list[End]]:
        """Scale and noise of each row, and the blocks that end among them."""
        rows = len(level)
        at = range(BLOCK - self.count % BLOCK, rows + 1, BLOCK)
        if not at:
            return np.full(rows, self.scale), np.full(rows, self.noise), []
        levels, abouts = at_ends(line, known, at)
        noises, measured = self._noises(levels, abouts, [self.measured])
        block = (self.count % BLOCK + np.arange(rows)) // BLOCK
        noise = np.array([self.noise, *noises])[block]
        ratios = (line[known:] - level) / noise
        heights = np.concatenate([self.heights, ratios])[: len(at) * BLOCK]
        last = np.concatenate([[self.last], heights[:-1]]).reshape(len(at), BLOCK)
        heights = heights.reshape(len(at), BLOCK)
        columns = [
            [self.noise, *noises[:-1]], [self.measured, *measured[:-1]],
            *(heights.max(axis=1).tolist(), heights.min(axis=1).tolist(), _alone(heights, last)),
            *(np.minimum(heights, last).max(axis=1).tolist(), _highest(self.rising, lift, at)),
            *(_highest(self.long_rising, long_lift, at), levels.tolist(), [0] * len(at)),
        ]  # fmt: skip
        blocks = [Block._make(column) for column in zip(*columns, strict=True)]
        ends = range(len(self.ratios) + at.start, len(self.ratios) + rows + 1, BLOCK)
        ratios = np.concatenate([self.ratios, ratios])
        wider = widths(ratios, ends, [*self.blocks, *blocks], noises)
        ended = map(End, at, noises, measured, wider, blocks)
        return noise * np.array([self.wider, *wider])[block], noise, list(ended)

    def _noises(
        self, levels: Array, abouts: Array, begun: Sequence[float] = ()
    ) -> tuple[list[float], list[float]]:
        """The noise after rows of these levels that are of these noises by themselves; and the same
        without what is usual. `begun`: a block ends at each; what was measured as the first began.
        """
        start = FLOOR_START * min(self.start, MOST_START)
        sizes, looks = np.abs(levels), len(levels)
        floors = np.maximum(np.minimum(start, FLOOR_FAR * sizes), self.floor_part * sizes)
        measured = np.maximum(np.maximum(floors, self.floor), abouts)
        known, heights = [b.measured for b in self.blocks], [abs(b.level) for b in self.blocks]
        if begun:
            known += [*begun, *measured.tolist()[:-1]]
            heights += sizes.tolist()
        usual = newest_medians(known, BLOCKS, looks)
        if self.falling:  # noise falls with the loss
            then = newest_medians(heights, BLOCKS, looks)
            usual = usual * np.minimum(1.0, sizes / np.maximum(then, 1e-300))
        few = len(known) - np.arange(looks)[::-1] < FEWEST_BLOCKS
        noises = np.where(few, measured, np.maximum(measured, LEAST_NOISE * usual))
        return noises.tolist(), measured.tolist()

    def _look_at_scale(self) -> None:
        values = np.array(self.values)
        if self.settled:
            about, self.course = noise_of(values), Course()
        else:
            about, self.course = noise_of_few(values)
        before, levels = self.noise, np.array([self.level])
        (self.noise,), (self.measured,) = self._noises(levels, np.array([about]))
        if not self.settled and before < self.noise:  # what was far over too little noise is less
            self.ratios = [before / self.noise * ratio for ratio in self.ratios]
        now = range(len(self.ratios), len(self.ratios) + 1)
        (self.wider,) = widths(np.array(self.ratios), now, self.blocks, [self.noise])


def _alone(heights: Array, last: Array) -> list[float]:
    """Of each block the depth of the row that lies deepest below its neighbours, as rows of a fall
    all lie deep; `last` are the rows before the `heights`, both of shape (blocks, rows)."""
    after = np.concatenate([heights[:, 1:], np.zeros((len(heights), 1))], axis=1)
    beside = np.minimum(0.0, np.minimum(last, after))
    found: list[float] = (heights - beside).min(axis=1).tolist()
    return found


def _highest(before: float, lifts: Array, ends: range) -> list[float]:
    """The highest lift of each block that ends at one of `ends`, at least 0; of the first one also
    what came `before`."""
    tops = np.maximum.reduceat(lifts[: ends[-1]], [0, *ends[:-1]])
    tops[0] = max(before, tops[0])
    found: list[float] = np.maximum(tops, 0.0).tolist()
    return found
