"""The baseline of one signal: its local level, and how far its rows usually lie from it.

Everything is counted in calm rows, never in steps. For the next row:

    level  median of the newest 8 rows; of a falling loss, carried on by their slope
    noise  MAD of the third differences of the newest 48 rows, as of independent rows: neither a
           steep descent nor its bend is noise. At least 0.8 of what is usual here, and 0.2 % of
           the level
    scale  noise times the larger of two factors: how much wider the rows lie about the level
           (autocorrelation, up to 3), and how heavy the upper tail is (up to 10)
    z      (value - level) / scale, and less while fewer than 64 rows are known

Noise and factors are taken anew every 16 rows, so one row and a thousand are judged by the same
arithmetic and give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from spikeguard_core.detection.judged import Array, Block, Judged, Scale

NORMAL_MAD = 1.4826  # robust standard deviation of normal noise over its MAD
LOCAL = 8  # rows of the level
SHORT = 4  # rows of each median that makes a slope
LAG = (LOCAL + 1) / 2  # rows from the middle of the level's to the next
NOISE = 48  # third differences of the noise
NEAR = 16  # rows of a long lift
WIDE, FEWEST_WIDE = 32, 24  # rows before these, which it is seen against
KEPT = 64  # newest rows
BLOCK = 16  # rows between two looks at the scale
BLOCKS = 32  # newest blocks, which say what is usual,
FEWEST_BLOCKS = 2  # and the fewest that do
FEWEST_MOVES = 4  # of the level that tell how much it wanders about its course
FEW_BLOCKS = 2.0  # few moves say little: times 1 + 2 / moves
MORE_TOP = 16.0  # nor does the highest row: times 1 + 16 / blocks
FEWEST_LEFT = 24  # rows that have to be left before an incident
RISING = 3  # blocks before an incident whose heights may be its beginning
APART = 32  # usual distances of rows: farther apart, a row continues nothing
RATIOS = 96  # newest residuals that widen the noise
YOUNG = 64  # rows until z counts in full,
YOUNG_PART = 1.5  # and how much less before: z / (1 + 1.5 / rows)
MOST_WIDER = 3.0  # of the noise, at most
NORMAL_MIDDLE = 1.349  # deviations between the quartiles of normal noise
EVEN_WIDTH = 1.25  # deviations: as wide as independent rows lie about a median of 8, and some more
MOST_TAIL = 10.0
LEAST_NOISE = 0.8  # of the usual noise
FLOOR_PART = 0.002  # of the level: the least noise
FLOOR_START = 0.0005  # of the level at which the signal began,
MOST_START = 12.0  # as far as a loss by guessing goes, in nats
NORMAL_90 = 1.2816  # quantile of the normal distribution
TOP_QUANTILE, NORMAL_TOP = 0.6, 1.861  # of the highest of 16 rows, and where noise is normal


def median(values: Sequence[float]) -> float:
    """The median of finite values; of none it is NaN."""
    if not values:
        return math.nan
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _middle(values: Array) -> Array:
    """Medians of the rows of an array."""
    half = values.shape[1] // 2
    if values.shape[1] % 2:
        return np.partition(values, half, axis=1)[:, half]
    parted = np.partition(values, (half - 1, half), axis=1)
    return (parted[:, half - 1] + parted[:, half]) / 2


def _quantile(ordered: Sequence[float], part: float) -> float:
    """The lower of the two ordered values that a quantile lies between."""
    return ordered[int(part * (len(ordered) - 1))]


def _third(rows: Array) -> Array:
    """Sizes of the third differences of rows, as of the deviation of independent rows."""
    with np.errstate(over="ignore"):  # of values near the largest float
        third = np.abs(rows[3:] - 3.0 * (rows[2:-1] - rows[1:-2]) - rows[:-3])
    return NORMAL_MAD / math.sqrt(20.0) * third


def _noise(rows: Array) -> float:
    """Standard deviation of rows about their course."""
    return float(_middle(_third(rows)[None, -NOISE:])[0])


def _bends(levels: Sequence[float]) -> float:
    """Deviation of the moves from one level to the next about their course, as of independent
    levels, by second differences."""
    second = [abs(a - 2.0 * b + c) for a, b, c in zip(levels, levels[1:], levels[2:], strict=False)]
    return NORMAL_MAD / math.sqrt(3.0) * median(second)


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
    wider: float = 1.0  # by which rows lie wider than the noise
    ratios: list[float] = field(default_factory=list)
    heights: list[float] = field(default_factory=list)  # ratios of the block that is not full yet,
    last: float = 0.0  # the row before it,
    rising: float = 0.0  # the highest lift within it,
    long_rising: float = 0.0  # and the highest of 16 rows
    blocks: list[Block] = field(default_factory=list)
    top: float = math.inf  # the second highest block's, and more while few blocks are known
    bottom: float = math.inf  # deepest row, above zero
    pair: float = 0.0
    lift: float = 0.0
    long_lift: float = 0.0
    wander: float = 0.0  # deviation of the moves of the level from block to block,
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
        newest = self.steps[-LOCAL:]
        return max(1.0, median([b - a for a, b in pairwise(newest)] or [1.0]))

    @property
    def level(self) -> float:
        """Median of the newest calm rows."""
        return median(self.values[-LOCAL:])

    @property
    def scale(self) -> float:
        """One deviation, for the next row."""
        return self.noise * self.wider

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

    def judge(self, values: Array) -> Judged:
        """Judge rows that follow; more than one only while `settled`."""
        known, rows = len(self.values), len(values)
        line = np.concatenate([np.array(self.values), values])
        level = _middle(sliding_window_view(line, LOCAL)[known - LOCAL :][:rows])
        if self.falling and known >= 3 * SHORT:
            level = level + LAG * self._slope(line, known, rows)
        lift = self._lift_of(line, known, rows, LOCAL)
        long_lift = self._lift_of(line, known, rows, NEAR)
        scales = dict[int, Scale]()
        scale, noise = self._scales(line, known, level, scales)
        rest = values - level
        counts = self.count + np.arange(rows)
        young = np.where(counts < YOUNG, 1.0 + YOUNG_PART / np.maximum(counts, 1), 1.0)
        scale = scale * young
        return Judged(values, level, scale, rest / scale, lift, long_lift, rest / noise, scales)

    def take(self, steps: Sequence[int], judged: Judged, rows: int) -> None:
        """Keep the first `rows` of judged rows as calm."""
        values = judged.values[:rows].tolist()
        self.steps = [*self.steps, *steps[:rows]][-KEPT:]
        self.ratios += judged.ratio[:rows].tolist()
        begin = 0
        while begin < rows:
            part = slice(begin, min(rows, begin + BLOCK - self.count % BLOCK))
            self.values += values[part]
            self.count += part.stop - begin
            self.heights += judged.ratio[part].tolist()
            self.rising = max(self.rising, float(judged.lift[part].max()))
            self.long_rising = max(self.long_rising, float(judged.long_lift[part].max()))
            if self.count % BLOCK == 0:
                known = len(self.ratios) - rows + part.stop
                self._end_block(steps[part.stop - 1], self.ratios[:known], judged.scales)
            elif self.count < YOUNG:
                self._look_at_scale(self.ratios)
            begin = part.stop
        del self.values[:-KEPT], self.ratios[:-RATIOS]

    def learn(self, step: int, value: float) -> None:
        """Keep a row that cannot be judged yet."""
        self.steps, self.values = [*self.steps, step][-KEPT:], [*self.values, value][-KEPT:]
        self.count += 1
        if self.falling:
            self.start = max(self.start, abs(value))
        if self.count >= LOCAL:
            self._look_at_scale(self.ratios)

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
        self._look_at_heights()

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
        newest = _middle(sliding_window_view(line, near)[known - near :][:rows])
        before = _middle(sliding_window_view(line, wide)[known - near - wide :][:rows])
        return newest - before

    def _scales(
        self, line: Array, known: int, level: Array, scales: dict[int, Scale]
    ) -> tuple[Array, Array]:
        """Scale and noise of each row; `scales` takes those at the ends of blocks."""
        rows = len(level)
        scale, noise = np.empty(rows), np.empty(rows)
        begin, values, blocks = 0, line[known:], self.blocks
        ratios, heights, last = self.ratios, self.heights, self.last
        state = Scale(self.noise, self.wider)
        ends = range(BLOCK - self.count % BLOCK, rows, BLOCK)
        for end, then, about in zip(ends, *_at_ends(line, known, ends), strict=True):
            part = slice(begin, end)
            noise[part], scale[part] = state.noise, state.deviation
            newest = ((values[part] - level[part]) / state.noise).tolist()
            ratios, heights = [*ratios, *newest][-RATIOS:], [*heights, *newest]
            blocks = [*blocks, _block(state.noise, last, heights, then)][-BLOCKS:]
            last, heights, begin = heights[-1], [], end
            state = scales[self.count + end] = self._scale_of(then, about, ratios, blocks)
        noise[begin:], scale[begin:] = state.noise, state.deviation
        return scale, noise

    def _scale_of(
        self, level: float, noise: float, ratios: Sequence[float], blocks: Sequence[Block]
    ) -> Scale:
        """What one deviation is after rows of this level, and of this noise by themselves."""
        start = FLOOR_START * min(self.start, MOST_START)
        noise = max(self.floor_part * abs(level), start, self.floor, noise)
        wider = 1.0
        if len(ratios) >= LOCAL:
            ordered = sorted(ratios[-RATIOS:])
            wider = _quantile(ordered, 0.9) / NORMAL_90
            if len(ordered) >= YOUNG:
                middle = _quantile(ordered, 0.75) - _quantile(ordered, 0.25)
                wider = max(wider, middle / NORMAL_MIDDLE / EVEN_WIDTH)
            wider = min(MOST_WIDER, max(1.0, wider))
        if len(blocks) >= FEWEST_BLOCKS:
            usual = median([block.noise for block in blocks])
            then = median([abs(block.level) for block in blocks])
            if self.falling and then > abs(level):  # noise falls with the loss
                usual *= abs(level) / then
            noise = max(noise, LEAST_NOISE * usual)
            tops = sorted(block.top * min(1.0, block.noise / noise) for block in blocks)
            tail = _quantile(tops, TOP_QUANTILE) / NORMAL_TOP
            wider = max(wider, min(MOST_TAIL, tail))
        return Scale(noise, wider)

    def _look_at_scale(self, ratios: Sequence[float]) -> None:
        known, level = self.noise, self.level
        noise = _noise(np.array(self.values[-NOISE - 3 :]))
        self.noise, self.wider = self._scale_of(level, noise, ratios, self.blocks)
        if self.count < YOUNG and known < self.noise:  # what was far over too little noise is less
            part = known / self.noise
            self.ratios = [part * ratio for ratio in self.ratios]
            self.wider = self._scale_of(level, noise, self.ratios, self.blocks).wider

    def _look_at_heights(self) -> None:
        if len(self.blocks) >= FEWEST_BLOCKS:
            tops, few = sorted(one.top for one in self.blocks), len(self.blocks) < BLOCKS // 4
            self.top = (tops[-1] if few else tops[-2]) * (1.0 + MORE_TOP / len(tops))
            self.bottom = max(1.0, -min(one.bottom for one in self.blocks))
            self.pair = max(one.pair for one in self.blocks)
            if self.falling:
                self._look_at_moves()

    def _look_at_moves(self) -> None:
        self.lift = max(one.lift for one in self.blocks)
        self.long_lift = max(one.long_lift for one in self.blocks)
        moves = sorted(b.level - a.level for a, b in pairwise(self.blocks))
        few = 1.0 + FEW_BLOCKS / len(moves)
        up = max(0.0, moves[int(0.9 * len(moves))]) / NORMAL_90
        if len(moves) >= FEWEST_MOVES:
            spread = _bends([block.level for block in self.blocks])
            up = max(up, spread)
        else:
            usual = moves[len(moves) // 2]
            spread = NORMAL_MAD * median([abs(move - usual) for move in moves])
        self.wander, self.rise = few * spread, few * up

    def _end_block(self, step: int, ratios: Sequence[float], scales: Mapping[int, Scale]) -> None:
        block = _block(self.noise, self.last, self.heights, self.level)
        block = block._replace(lift=self.rising, long_lift=self.long_rising, step=step)
        self.blocks = [*self.blocks, block][-BLOCKS:]
        self.last, self.heights = self.heights[-1], []
        self.rising = self.long_rising = 0.0
        self._look_at_heights()
        if (scale := scales.get(self.count)) is None:
            self._look_at_scale(ratios)
        else:
            self.noise, self.wider = scale


def _at_ends(line: Array, known: int, ends: range) -> tuple[list[float], list[float]]:
    """Level and noise at the `ends` of blocks, counted in rows after the `known` ones."""
    if not ends:
        return [], []
    first = known + ends[0]
    if first < NOISE + 3:  # the run went back: few rows are left
        parts = [line[max(0, known + end - NOISE - 3) : known + end] for end in ends]
        return [median(part[-LOCAL:].tolist()) for part in parts], [_noise(part) for part in parts]
    levels = sliding_window_view(line, LOCAL)[first - LOCAL :: BLOCK][: len(ends)]
    thirds = sliding_window_view(_third(line), NOISE)[first - NOISE - 3 :: BLOCK][: len(ends)]
    return _middle(levels).tolist(), _middle(thirds).tolist()


def _block(noise: float, last: float, heights: Sequence[float], level: float) -> Block:
    pair = max(min(a, b) for a, b in zip([last, *heights], heights, strict=False))
    return Block(noise, max(heights), min(heights), pair, 0.0, 0.0, level, 0)
