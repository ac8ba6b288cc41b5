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
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from spikeguard_core.detection.judged import Array, Block, Judged, Scale
from spikeguard_core.detection.noise import (
    BLOCK,
    BLOCKS,
    FEWEST_BLOCKS,
    LOCAL,
    NORMAL_90,
    NORMAL_MAD,
    RATIOS,
    YOUNG,
    Course,
    at_ends,
    deviation_of_moves,
    median,
    medians,
    noise_of,
    noise_of_few,
    widths,
    windows,
)  # fmt: skip

SHORT = 4  # rows of each median that makes a slope
LAG = (LOCAL + 1) / 2  # rows from the middle of the level's to the next
NEAR = 16  # rows of a long lift
WIDE, FEWEST_WIDE = 32, 24  # rows before these, which it is seen against
KEPT = 64  # newest rows
FEWEST_MOVES = 4  # of the level that tell how much it wanders about its course
FEW_BLOCKS = 2.0  # few moves say little: times 1 + 2 / moves
MORE_TOP = 16.0  # nor does the highest row: times 1 + 16 / blocks,
DEEPEST, MORE_BOTTOM = 3, 2.0  # nor do the deepest: times 1 + 2 / blocks
FEWEST_LEFT = 24  # rows that have to be left before an incident
RISING = 3  # blocks before an incident whose heights may be its beginning
APART = 32  # usual distances of rows: farther apart, a row continues nothing
YOUNG_PART = 1.5  # of few rows z counts less: z / (1 + 1.5 / rows)
LEAST_NOISE = 0.8  # of the usual noise
FLOOR_PART = 0.002  # of the level: the least noise
FLOOR_START = 0.0005  # of the level at which the signal began,
MOST_START = 12.0  # as far as a loss by guessing goes, in nats


@dataclass(slots=True)
class Baseline:
    """The newest calm rows of one signal. `values` are logarithms where it is a norm."""

    falling: bool  # a loss: its level is carried on downwards
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
    lift: float = 0.0  # the highest of the blocks
    long_lift: float = 0.0
    wander: float = 0.0  # deviation of the moves of the level from block to block about its course,
    rise: float = 0.0  # and by what it usually rises

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
        return max(1.0, median(np.diff(self.steps[-LOCAL:]).tolist() or [1.0]))

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
        """Height of the second highest block, and more while few blocks are known."""
        tops = sorted(one.top for one in self.blocks)
        if len(tops) < FEWEST_BLOCKS:
            return math.inf
        few = len(tops) < BLOCKS // 4
        return (tops[-1] if few else tops[-2]) * (1.0 + MORE_TOP / len(tops))

    @property
    def bottom(self) -> float:
        """Mean depth of the three deepest blocks, and more while few blocks are known."""
        if len(self.blocks) < FEWEST_BLOCKS:
            return math.inf
        deepest = sorted(one.bottom for one in self.blocks)[:DEEPEST]
        return max(1.0, -sum(deepest) / len(deepest)) * (1.0 + MORE_BOTTOM / len(self.blocks))

    @property
    def pair(self) -> float:
        """The highest of lower rows of neighbours."""
        known = self.blocks if len(self.blocks) >= FEWEST_BLOCKS else []
        return max((one.pair for one in known), default=0.0)

    def is_apart(self, step: int) -> bool:
        """Whether a row at `step` comes so late that it continues nothing: the log's spacing
        changed, or most of a stretch is missing."""
        known = len(self.steps) >= LOCAL
        return known and step - self.steps[-1] >= APART * self.gap

    def are_apart(self, steps: Sequence[int]) -> NDArray[np.bool_]:
        """The same of each of rising `steps` after the one before it; only while `settled`."""
        distances = np.diff(np.array([self.steps[-1], *steps]))
        apart: NDArray[np.bool_] = distances >= APART * self.gap
        return apart

    def judge(self, values: Array, held: int = 0) -> Judged:
        """Judge rows that follow, `held` rows after the newest known; more than one row only while
        `settled`."""
        known, rows = len(self.values), len(values)
        line = np.concatenate([np.array(self.values), values])
        level = medians(windows(line, LOCAL, known, rows))
        if self.falling and known >= 3 * SHORT:
            level = level + LAG * self._slope(line, known, rows)
        if self.falling:
            level = np.maximum(level, self.course.ahead) + held * self.course.fall
        lift = self._lift_of(line, known, rows, LOCAL)
        long_lift = self._lift_of(line, known, rows, NEAR)
        scale, noise, ends = self._scales(line, known, level)
        rest = values - level
        counts = self.count + np.arange(rows)
        young = np.where(counts < YOUNG, 1.0 + YOUNG_PART / np.maximum(counts, 1), 1.0)
        scale = scale * young
        return Judged(values, level, scale, rest / scale, lift, long_lift, rest / noise, ends)

    def take(self, steps: Sequence[int], judged: Judged, rows: int) -> None:
        """Keep the first `rows` of judged rows as calm."""
        values, ratios = judged.values[:rows].tolist(), judged.ratio[:rows].tolist()
        lifts, long_lifts = judged.lift[:rows].tolist(), judged.long_lift[:rows].tolist()
        self.steps = [*self.steps, *steps[:rows]][-KEPT:]
        self.values, self.ratios = self.values + values, self.ratios + ratios
        begin = 0
        while begin < rows:
            end = min(rows, begin + BLOCK - self.count % BLOCK)
            self.count += end - begin
            self.heights += ratios[begin:end]
            self.rising = max(self.rising, *lifts[begin:end])
            self.long_rising = max(self.long_rising, *long_lifts[begin:end])
            if self.count % BLOCK == 0:
                self._end_block(steps[end - 1], judged.ends.get(self.count))
            elif self.count < YOUNG:
                self._look_at_scale()
            begin = end
        del self.values[:-KEPT], self.ratios[:-RATIOS]

    def learn(self, step: int, value: float) -> None:
        """Keep a row that cannot be judged yet."""
        self.steps, self.values = [*self.steps, step][-KEPT:], [*self.values, value][-KEPT:]
        self.count += 1
        if self.falling:
            self.start = max(self.start, abs(value))
        if self.count >= LOCAL:
            self._look_at_scale()

    def restart(self) -> None:
        """Forget every row."""
        fresh = Baseline(self.falling, self.floor_part, self.floor)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))

    def begin(self, onset_step: int) -> None:
        """An incident began: its rows, and what those just before it did, are not usual."""
        if sum(1 for step in self.steps if step < onset_step) >= FEWEST_LEFT:
            self.cut(onset_step)
        recent = [
            block._replace(pair=0.0, lift=0.0, long_lift=0.0) for block in self.blocks[-RISING:]
        ]
        self.blocks = [*self.blocks[:-RISING], *recent]
        self.rising = self.long_rising = 0.0
        self._look_at_moves()

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
        if keep < LOCAL:
            self.restart()
            return
        del self.steps[keep:], self.values[keep:]

    def before(self, rows: int) -> list[tuple[int, float]]:
        """The newest calm rows, with their steps."""
        return list(zip(self.steps[-rows:], self.values[-rows:], strict=True))

    def _slope(self, line: Array, known: int, rows: int) -> Array:
        """Change a row, at most 0: the flattest of the slopes between medians of 4 rows, so that
        neither a single fall nor a bend is carried on."""
        pieces = min(4, known // SHORT)
        back = pieces * SHORT
        near = line[known - back :]
        four = [near[at : at + rows + back - SHORT] for at in range(SHORT)]
        ends = np.maximum(np.maximum(four[0], four[1]), np.maximum(four[2], four[3]))
        ends = ends + np.minimum(np.minimum(four[0], four[1]), np.minimum(four[2], four[3]))
        middle = (four[0] + four[1] + four[2] + four[3] - ends) / 2
        at = [middle[(pieces - 1 - piece) * SHORT :][:rows] for piece in range(pieces)]
        last = [line[known - back_by :][:rows] for back_by in range(1, SHORT + 1)]
        flattest = (last[0] + last[1] - last[2] - last[3]) / SHORT
        for newer, older in pairwise(at):
            flattest = np.maximum(flattest, (newer - older) / SHORT)
        return np.minimum(flattest, 0.0)

    def _lift_of(self, line: Array, known: int, rows: int, near: int) -> Array:
        wide = min(WIDE, known - near)
        if not self.falling or wide < FEWEST_WIDE:
            return np.full(rows, -np.inf)
        newest = medians(windows(line, near, known, rows))
        return newest - medians(windows(line, wide, known - near, rows))

    def _scales(
        self, line: Array, known: int, level: Array
    ) -> tuple[Array, Array, dict[int, tuple[Scale, Block]]]:
        """Scale and noise of each row, and the blocks that end among them as `Judged.ends`."""
        rows = len(level)
        at = range(BLOCK - self.count % BLOCK, rows, BLOCK)
        if not at:
            return np.full(rows, self.scale), np.full(rows, self.noise), {}
        levels, abouts = at_ends(line, known, at)
        both = [(self.noise, self.measured), *self._noises(levels, abouts)]
        noises, measured = [noise for noise, _ in both], [about for _, about in both]
        lengths = np.diff([0, *at, rows])
        noise = np.repeat(noises, lengths)
        ratios = (line[known:] - level) / noise
        heights = np.concatenate([self.heights, ratios])[: len(at) * BLOCK]
        pairs = np.minimum(heights, [self.last, *heights[:-1]]).reshape(len(at), BLOCK)
        heights = heights.reshape(len(at), BLOCK)
        columns = heights.max(axis=1), heights.min(axis=1), pairs.max(axis=1)
        found = zip(
            noises, measured, *(column.tolist() for column in columns), levels, strict=False
        )
        blocks = [Block._make([*those, 0.0, 0.0, then, 0]) for *those, then in found]
        wider = widths(
            np.concatenate([self.ratios, ratios]), len(self.ratios) + np.array(at),
            [*self.blocks, *blocks], noises[1:],
        )  # fmt: skip
        after = zip(map(Scale, noises[1:], measured[1:], wider), blocks, strict=True)
        ends = {self.count + end: both for end, both in zip(at, after, strict=True)}
        return noise * np.repeat([self.wider, *wider], lengths), noise, ends

    def _noises(
        self, levels: Sequence[float], abouts: Sequence[float]
    ) -> list[tuple[float, float]]:
        """The noise after each of the next blocks, which end at these levels and are of these
        noises by themselves."""
        known, heights = [one.measured for one in self.blocks], [abs(b.level) for b in self.blocks]
        noises, measured = list[tuple[float, float]](), self.measured
        for level, about in zip(levels, abouts, strict=True):
            known, heights = [*known, measured][-BLOCKS:], [*heights, abs(level)][-BLOCKS:]
            noise, measured = self._noise_after(level, about, known, heights)
            noises.append((noise, measured))
        return noises

    def _noise_after(
        self, level: float, noise: float, noises: Sequence[float], heights: Sequence[float]
    ) -> tuple[float, float]:
        """The noise after rows of this level, and of this noise by themselves, where blocks of
        these noises and heights are known; and the same without what is usual."""
        start = FLOOR_START * min(self.start, MOST_START)
        noise = max(self.floor_part * abs(level), start, self.floor, noise)
        if len(noises) < FEWEST_BLOCKS:
            return noise, noise
        usual = median(noises)
        if self.falling and (then := median(heights)) > abs(level):  # noise falls with the loss
            usual *= abs(level) / then
        return max(noise, LEAST_NOISE * usual), noise

    def _look_at_scale(self) -> None:
        values = np.array(self.values)
        if self.settled:
            about, self.course = noise_of(values), Course()
        else:
            about, self.course = noise_of_few(values)
        known, noises = self.noise, [one.measured for one in self.blocks]
        heights = [abs(one.level) for one in self.blocks]
        noise, self.measured = self._noise_after(self.level, about, noises, heights)
        self.noise = noise
        if not self.settled and known < noise:  # what was far over too little noise is less
            self.ratios = [known / noise * ratio for ratio in self.ratios]
        at = np.array([len(self.ratios)])
        (self.wider,) = widths(np.array(self.ratios), at, self.blocks, [noise])

    def _look_at_moves(self) -> None:
        if not self.falling or len(self.blocks) < FEWEST_BLOCKS:
            return
        self.lift = max([one.lift for one in self.blocks])
        self.long_lift = max([one.long_lift for one in self.blocks])
        levels = [block.level for block in self.blocks]
        moves = sorted(b - a for a, b in pairwise(levels))
        few = 1.0 + FEW_BLOCKS / len(moves)
        up = max(0.0, moves[int(0.9 * len(moves))]) / NORMAL_90
        if len(moves) >= FEWEST_MOVES:
            spread = deviation_of_moves(levels)
        else:
            usual = moves[len(moves) // 2]
            spread = NORMAL_MAD * median([abs(move - usual) for move in moves])
        self.wander, self.rise = few * spread, few * up

    def _end_block(self, step: int, known: tuple[Scale, Block] | None) -> None:
        if known is None:
            block = _block(self.noise, self.measured, self.last, self.heights, self.level)
        else:
            (self.noise, self.measured, self.wider), block = known
        block = block._replace(lift=self.rising, long_lift=self.long_rising, step=step)
        self.blocks = [*self.blocks, block][-BLOCKS:]
        self.last, self.heights = self.heights[-1], []
        self.rising = self.long_rising = 0.0
        self._look_at_moves()
        if known is None:
            self._look_at_scale()


def _block(
    noise: float, measured: float, last: float, heights: Sequence[float], level: float
) -> Block:
    pair = max(min(a, b) for a, b in zip([last, *heights], heights, strict=False))
    return Block(noise, measured, max(heights), min(heights), pair, 0.0, 0.0, level, 0)
