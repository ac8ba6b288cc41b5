"""The tests of the loss: whether a row, with those around it, begins an incident.

    jump     2 rows in a row at z 4.4, one of them at 6, or 3 whose middle one is at 4.7; and higher
             than any pair of calm rows here by 40 %, two rows alone also than the deepest calm
             rows by 50 %; and a rise of 6 noises from one row to the next, or a row at z 13 and
             one above the median of the newest 4 calm rows
    lift     the median of 8 rows lies 3.5 scales above that of the 32 before, or that of 16 rows
             2.3; and higher than any lift among calm rows by 90 %
             both: and by 3.4 times what the level usually rises in 16 rows; a lift also by 3.4 of
             its usual moves
    downward 2 rows in a row whose size is 10 times the level's, and 100 scales below it
    zero     3 losses of exactly 0 after losses well above 0
    outlier  one row at z 8 whose neighbours are calm, and far beyond the calm rows on either side

A row that may begin something is held until the next rows confirm or clear it, and nothing that is
held enters the baseline, unless it is 16 rows: so many are the level, and may end a lift.
Slow rises: `slow_rise`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from spikeguard_core.detection.baseline import KEPT, MOST_START, NEAR, SHORT, Baseline
from spikeguard_core.detection.noise import (
    BLOCK,
    BLOCKS,
    FEWEST_BLOCKS,
    LOCAL,
    Array,
    Block,
    Judged,
    Moves,
    median,
)
from spikeguard_core.detection.sample import Rows
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.detection.slow_rise import SlowRise
from spikeguard_core.events import Trend
from spikeguard_protocol import BatchRange

BEFORE = 24  # calm rows that tell the loss before
FEW_ROWS = 60.0  # of few rows a lift has to be higher: times 1 + (60 / rows) squared
MOST_FALL = 0.5  # of the level that a forecast may fall by
LEAST_FALL = 5.5  # scales, of a level that fell at once
SAME_FALL = 0.9  # of the largest fall: the block before it shows it too
SLOPE_BLOCKS = 4  # whose levels show a slope
RECENT = 40  # rows that are looked back at when an incident opens
DOWN_Z = 100.0  # scales below the level, of a loss that explodes downwards
DOWN_PART = 10.0
ZERO_Z = 4.0  # scales above 0 of a loss that does not fade to 0,
ZERO_PART = 0.25  # the part of the level that no known row lies below,
ZERO_START = 0.03  # and of the level at which it began, below which it has faded


class Verdict(StrEnum):
    """What one more row amounts to."""

    UNKNOWN = "unknown"  # too little is known of the signal
    CALM = "calm"
    HELD = "held"  # far off, waiting for the next row
    OUTLIER = "outlier"  # the row before stood out alone
    SPIKE = "spike"
    SLOW_RISE = "slow_rise"
    ZERO = "zero"  # the loss is exactly 0


@dataclass(frozen=True, slots=True)
class Suspect:
    """A row that may be the onset of a spike, or stand alone."""

    step: int
    value: float
    z: float
    batches: BatchRange | None
    height: float = 0.0  # over the noise


@dataclass(slots=True)
class LossTest:
    """Baseline and tests of the loss of one run."""

    baseline: Baseline = field(default_factory=lambda: Baseline(falling=True))
    slow: SlowRise = field(default_factory=SlowRise)
    held: list[Suspect] = field(default_factory=list)  # far off, not yet confirmed
    zeros: list[Suspect] = field(default_factory=list)  # losses of exactly 0, as far
    outlier: Suspect | None = None  # set with the verdict OUTLIER
    lone: tuple[float, Suspect] | None = None  # the usual value, and a row as odd as others here
    lifted: Suspect | None = None  # the first row of the lift that the verdict SPIKE is for
    last_z: float = 0.0  # of the newest row
    rows: list[tuple[int, float]] = field(default_factory=list)  # newest finite rows

    def look(
        self, step: int, value: float, batches: BatchRange | None, settings: DetectionSettings
    ) -> tuple[Verdict, float]:
        """Judge one finite row, and keep it if it is calm. Returns verdict and z."""
        self.rows = [*self.rows, (step, value)][-RECENT:]
        self.lone = None
        baseline = self.baseline
        if baseline.is_apart(step):
            self.clear()
            baseline.restart()
            self.slow.restart()
        if baseline.count < settings.watchable_after:
            if baseline.count or value != 0.0:  # zeros before the first loss say nothing
                baseline.learn(step, value)
            self.last_z = 0.0
            return Verdict.UNKNOWN, 0.0
        judged = baseline.judge(np.array([value]), len(self.held))
        z = self.last_z = float(judged.z[0])
        row = Suspect(step, value, z, batches, float(judged.ratio[0]))
        if value == 0.0 and (self.zeros or self._is_clear_of_zero()):
            self.zeros.append(row)
            told = len(self.zeros) >= settings.zero_rows
            return (Verdict.ZERO if told else Verdict.HELD), z
        self.zeros = []
        size = max(abs(float(judged.level[0])), baseline.start)
        down = -z >= DOWN_Z and abs(value) >= DOWN_PART * size
        if z >= settings.confirm_z or down:
            return self._hold(row, settings), z
        if self.held:
            return self._release(row, settings), z
        if self._is_lifted(judged, 0, baseline.blocks, settings)[0]:
            self.lifted = self._lift_onset(row)
            return Verdict.SPIKE, z
        baseline.take([step], judged, 1)
        if baseline.count % BLOCK == 0 and self.slow.look(
            baseline.blocks, step, baseline.scale, settings
        ):
            return Verdict.SLOW_RISE, z
        return Verdict.CALM, z

    def calm_rows(
        self, steps: NDArray[np.int64], values: Array, settings: DetectionSettings
    ) -> tuple[int, Judged]:
        """How many of these rows, of rising steps, are calm up to the first that is not.

        The same as `look` row by row; only where none waits and the baseline is settled.
        """
        baseline = self.baseline
        judged = baseline.judge(values)
        odd = ~np.isfinite(values) | (judged.z >= settings.confirm_z) | (values == 0.0)
        odd |= self._is_lifted(judged, 0, baseline.blocks, settings)
        odd |= -judged.z >= DOWN_Z
        odd |= baseline.are_apart(steps)
        rows = int(odd.argmax()) if odd.any() else len(values)
        return rows, judged

    def take(
        self,
        steps: Sequence[int],
        judged: Judged,
        rows: int,
        settings: DetectionSettings,
        rates: Rows = ((), ()),
    ) -> tuple[int, Verdict]:
        """Keep the first `rows` of rows that `calm_rows` judged, with the `rates` among them.

        Returns how many were kept, and what the last of them amounts to: `SLOW_RISE` or `CALM`.
        Fewer are kept where one of them is lifted above what has since become usual.
        """
        blocks, verdict, seen = self.baseline.blocks, Verdict.CALM, 0
        # Without blocks: rows that are high enough, were nothing usual here.
        high = np.flatnonzero(self._is_lifted(judged, 0, (), settings)[:rows]).tolist()
        for end in judged.ends:
            if end.rows > rows:
                break
            blocks = [*blocks, end.block][-BLOCKS:]
            seen = self._see_rates(steps, rates, seen, end.rows)
            if self.slow.look(blocks, steps[end.rows - 1], end.deviation, settings):
                verdict, rows = Verdict.SLOW_RISE, end.rows
                break
            if high and high[-1] >= end.rows:  # perhaps too high for what is usual now
                lifted = self._is_lifted(judged, end.rows, blocks, settings)[: rows - end.rows]
                rows = end.rows + int(lifted.argmax()) if lifted.any() else rows
        self._see_rates(steps, rates, seen, rows)
        if rows:
            self.baseline.take(steps, judged, rows)
            self.last_z = float(judged.z[rows - 1])
            newest = slice(max(0, rows - RECENT), rows)
            fresh = zip(steps[newest], judged.values[newest].tolist(), strict=True)
            self.rows = [*self.rows, *fresh][-RECENT:]
        return rows, verdict

    def _see_rates(self, steps: Sequence[int], rates: Rows, seen: int, until: int) -> int:
        """See the rates of the rows before `until`, of which so many were seen; returns how many
        are now."""
        at, values = rates
        end = bisect_left(at, until)
        for row, rate in zip(at[seen:end], values[seen:end], strict=True):
            self.slow.see_rate(rate, steps[row])
        return end

    def onset(self, row: Suspect) -> Suspect:
        """The first row of the spike that `row` confirmed."""
        known = [*self.held[:1], *self.zeros[:1]]
        if self.lifted is not None:
            known.append(self.lifted)
        return min(known, key=lambda at: at.step, default=row)

    def trend(self, step: int, settings: DetectionSettings) -> Trend | None:
        """Where the loss heads from `step` on, for the steps of a horizon; None while unknown.

        The level is measured: the median of the newest 24 calm rows, brought to `step` by the
        slope, and never outside these rows. It is carried on downwards
        only, by the slope in log(step + 1) over the newest 512 rows or by that over the newer half
        of them, whichever is flatter, and flatter still where it flattened; over the horizon it
        falls by no more than it was seen to.
        """
        if not self.baseline.knows:
            return None
        known = [(at, value) for at, value in self.baseline.before(KEPT) if at <= step]
        if not known:
            return None
        newest = known[-(BEFORE if self.baseline.settled else LOCAL) :]
        level = median([value for _, value in newest[-LOCAL:]])
        points = [(b.step, b.level) for b in self.baseline.blocks if b.step < known[-1][0]]
        if (fall_at_once := self.fall_at_once()) is not None:  # it is not expected to go on so
            at, before, after = fall_at_once
            points = [(s, v - before + after if s <= at else v) for s, v in points]
        if len(points) < SLOPE_BLOCKS:
            parts = known[:LOCAL], known[(len(known) - LOCAL) // 2 :][:LOCAL]
            points = [(part[0][0], median([value for _, value in part])) for part in parts]
        begin, middle, end = points[0], points[len(points) // 2], (known[-1][0], level)
        ahead = settings.horizon_at(self.baseline.gap)
        reach = math.log((step + ahead + 1) / (step + 1)) if step >= 0 else 0.0
        older, newer = _slope(begin, middle), _slope(middle, end)
        slope, fall = max(_slope(begin, end), newer), max(0.0, begin[1] - level)
        if older < newer < 0.0 < reach:  # as of a power of the step: the same factor over the same
            halves = (_log(end[0]) - _log(begin[0])) / 2  # distance, from middle to middle
            further = _log(step) + (reach - _log(middle[0]) - _log(end[0])) / 2
            slope *= (newer / older) ** (further / halves)
        fall = min(fall, MOST_FALL * abs(level))
        slope = min(0.0, slope)
        if reach > 0.0 and -slope * reach > fall:
            slope = -fall / reach
        here = median([value - slope * (_log(at) - _log(step)) for at, value in newest])
        values = [value for _, value in newest]
        level = min(max(values), max(min(values), here))
        return Trend(step, level, slope / (max(step, 0) + 1), self.baseline.scale, settings.band_z)

    def fall_at_once(self) -> tuple[int, float, float] | None:
        """The step up to which the loss was level before it fell within two blocks, and the levels
        before and after; None where its blocks show no such fall."""
        blocks, found = self.baseline.blocks, None
        most = LEAST_FALL * self.baseline.scale
        for row in range(1, len(blocks) - 1):
            before, after = blocks[row].level, min(b.level for b in blocks[row + 1 : row + 3])
            level = blocks[row - 1].level - before < (before - after) / 4
            if level and before - after >= SAME_FALL * most:
                found, most = (blocks[row].step, before, after), max(most, before - after)
        return found

    def begin(self, onset_step: int) -> None:
        """An incident begins: nothing waits any more, and its rise is not usual."""
        self.clear()
        self.baseline.begin(onset_step)

    def clear(self) -> None:
        """Forget what waits."""
        self.held, self.zeros = [], []
        self.outlier = self.lifted = None
        self.last_z = 0.0

    def restart(self) -> None:
        """Forget everything that is known of the run."""
        self.clear()
        self.baseline.restart()
        self.slow.restart()
        self.rows = []

    def cut(self, step: int) -> None:
        """Forget the rows at `step` and later: the run went back."""
        self.clear()
        self.baseline.cut(step)
        self.slow.restart()
        self.rows = [row for row in self.rows if row[0] < step]

    def settle(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """An incident is over: go on from its newest rows, which are calm."""
        self.clear()
        self.baseline.settle(steps, values)
        self.slow.restart()

    def _is_clear_of_zero(self) -> bool:
        known, level = self.baseline, self.baseline.level
        faded = ZERO_START * min(known.start, MOST_START)
        clear = level > max(ZERO_Z * known.scale, faded)
        return clear and min(known.values) > ZERO_PART * level

    def _hold(self, row: Suspect, settings: DetectionSettings) -> Verdict:
        before = self.held[-1].z if self.held else row.z
        if (before < 0.0) is not (row.z < 0.0):
            self.held = []
        self.held.append(row)
        if self._is_confirmed(settings):
            return Verdict.SPIKE
        if len(self.held) < max(NEAR, settings.confirm_rows):
            return Verdict.HELD
        return Verdict.SPIKE if self._take_held(lifts=settings) else Verdict.CALM

    def _take_held(self, lifts: DetectionSettings | None = None) -> bool:
        """Keep the held rows as calm: by the settings `lifts` only up to one that ends a lift,
        where they are as many as a level. Whether one ended a lift."""
        held, self.held = self.held, []
        for one in held:
            judged = self.baseline.judge(np.array([one.value]))
            if lifts is not None and self._is_lifted(judged, 0, self.baseline.blocks, lifts)[0]:
                self.lifted = self._lift_onset(one)
                return True
            self.baseline.take([one.step], judged, 1)
        return False

    def _is_confirmed(self, settings: DetectionSettings) -> bool:
        z, rows = [abs(one.z) for one in self.held], settings.confirm_rows
        usual = min(settings.usual_part * self.baseline.pair, settings.usual_most)
        if len(z) == 2 and len(self.baseline.blocks) >= FEWEST_BLOCKS:  # may be chance
            usual = max(usual, settings.pair_below * self.baseline.bottom)
        if len(z) < rows or min(abs(one.height) for one in self.held[-rows:]) < usual:
            return False
        high = max(one.value for one in self.held)
        steepest = self._steepest()
        below = self.held[-1].z > 0.0 and high < median(self.baseline.values[-SHORT:])
        if steepest < settings.steep_part and (below or max(z) < settings.steep_z):
            return False  # it wanders, or only stopped falling
        scale = self.baseline.scale
        usual_rise = Moves.of(self.baseline.blocks).rise
        least = min(settings.rise_part * usual_rise, settings.rise_most * scale)
        if min(z[-rows:]) * scale < least:
            return False
        if max(z[-rows:]) >= settings.suspect_z:
            return True
        return len(z) >= max(3, rows) and median(z[-3:]) >= settings.run_z

    def _steepest(self) -> float:
        """The largest move away from one row to the next among the held rows, over the noise: noise
        that wanders gets as high in many small moves."""
        values = [self.baseline.values[-1], *(one.value for one in self.held)]
        sign = math.copysign(1.0, self.held[-1].z)
        move = max(sign * (after - before) for before, after in pairwise(values))
        return (move - sign * self.baseline.course.fall) / self.baseline.noise

    def _release(self, row: Suspect, settings: DetectionSettings) -> Verdict:
        """The rows that were held are confirmed by nothing: keep them as calm."""
        first, alone = self.held[0], len(self.held) == 1 and row.height < self.held[0].height / 4
        out = alone and self._stands_out(first, settings)
        if alone and not out and first.height >= settings.listed_z:
            self.lone = (self.baseline.level, first)
        self._take_held()
        self.baseline.take([row.step], self.baseline.judge(np.array([row.value])), 1)
        self.outlier = first if out else None
        return Verdict.OUTLIER if out else Verdict.CALM

    def _stands_out(self, row: Suspect, settings: DetectionSettings) -> bool:
        """Whether a row alone is an event: batches of odd data raise the loss and hardly ever lower
        it, so rows that lie as far below tell of noise with heavy tails."""
        baseline = self.baseline
        step_up = abs(row.value - baseline.level)
        if step_up < settings.outlier_part * abs(baseline.level):
            return False
        light = min(1.0, baseline.alone / settings.outlier_tails)  # hardly any row lies far below
        least = max(
            settings.outlier_z,
            settings.outlier_below * baseline.alone * light,
            settings.outlier_above * baseline.top,
        )
        return row.height >= least

    def _is_lifted(
        self, judged: Judged, first: int, blocks: Sequence[Block], settings: DetectionSettings
    ) -> NDArray[np.bool_]:
        """Whether each judged row, from the `first` on, ends a lift, where `blocks` show what is
        usual."""
        scale, lift, long_lift = judged.scale[first:], judged.lift[first:], judged.long_lift[first:]
        rows = np.maximum(1, self.baseline.count + np.arange(first, len(judged.values)))
        few = 1.0 + (FEW_ROWS / rows) ** 2
        short, long = settings.lift_z * few * scale, settings.long_lift_z * few * scale
        lifted: NDArray[np.bool_] = (lift >= short) | (long_lift >= long)
        lifted &= judged.values[first:] > judged.level[first:]
        if not lifted.any():
            return lifted
        moves, usual = Moves.of(blocks), settings.lift_usual
        usual_rise = max(moves.rise, moves.wander)
        rise = np.minimum(settings.rise_part * usual_rise, settings.rise_most * scale)
        enough = lift >= np.maximum(np.maximum(short, usual * moves.lift), rise)
        enough |= long_lift >= np.maximum(np.maximum(long, usual * moves.long_lift), rise)
        return lifted & enough

    def _lift_onset(self, row: Suspect) -> Suspect:
        """The first of the newest rows that all lie above where the lift began."""
        rows = self.baseline.before(2 * NEAR)
        low = median([value for _, value in self.baseline.before(64)][:-LOCAL])
        limit = low + self.baseline.scale
        first = row
        for step, value in reversed(rows):
            if value < limit:
                break
            first = Suspect(step, value, (value - low) / self.baseline.scale, None)
        return first


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    """Change of the level in the logarithm of the step, from a step and its level to a later."""
    span = _log(other[0]) - _log(one[0])
    return (other[1] - one[1]) / span if span > 0.0 else 0.0


def _log(step: int) -> float:
    return math.log(max(step, 0) + 1)
