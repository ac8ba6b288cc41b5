"""A loss that rises slowly and goes on: no row stands out, and yet the run gets worse.

Every 16 calm rows the smoothed loss (the mean of the newest two blocks' levels) is held against the
best level of a block. It is a slow rise if it stands above it by 3.5 % of the loss, by 4.7 scales
and by 6.2 usual moves of the level from block to block, has done so for 48 rows, and is at its
highest since; and by a fifth more than a slow rise ever came down again by itself, since a loss
that swings, as over data in one order, is no news each time. The best is forgotten where the run
begins anew, after a restart or an incident, and for a horizon after a change that somebody noted:
new data may raise the loss, and nothing is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from spikeguard_core.detection.noise import BLOCK, Block, Moves
from spikeguard_core.detection.settings import DetectionSettings

SMOOTH = 2  # blocks
SWING_PART = 1.2  # of the height of a rise that went by
RAISED = 1.5  # times the lowest rate: a rise of the loss is the schedule's
LOOKS = 3  # newest smoothed values that must rise on the whole
RISES = 1, 2  # powers of the rows since its begin
FEWEST_BENT = 5  # blocks that show a bend
NEARLY = 3.84  # 95 % of the chi-squared distribution: by this many variances a bend fits as well


@dataclass(slots=True)
class SlowRise:
    """The best smoothed loss so far, and what came since."""

    best: float = math.inf
    best_step: int = 0  # where its block ended,
    near_step: int = 0  # and the newest one that was no higher than the loss swings
    scale: float = 0.0  # one deviation there: a rise widens its own
    since: int = 0  # rows since the best
    rate: float = 0.0  # newest learning rate, as far as it is known,
    highest_rate: float = 0.0  # of the warm-up,
    highest_rate_step: int = 0  # where it was first so high,
    lowest_rate: float = math.inf  # and since
    highest: float = -math.inf  # smoothed, since the best
    newest: list[float] = field(default_factory=list)  # smoothed
    swing: float = 0.0  # how far slow rises came down again by themselves, at most
    changed_until: int = 0  # the step up to which a noted change may raise the loss

    def look(
        self, blocks: Sequence[Block], step: int, scale: float, settings: DetectionSettings
    ) -> bool:
        """Look at the newest of `blocks`, which ended at `step`, with the scale after it. Returns
        whether the loss rises slowly."""
        if len(blocks) < SMOOTH:
            return False
        smooth = sum(block.level for block in blocks[-SMOOTH:]) / SMOOTH
        self.newest = [*self.newest, smooth][-LOOKS:]
        level = blocks[-1].level
        warm_restart = self.rate >= RAISED * self.lowest_rate
        if warm_restart or step <= self.changed_until:  # both lift the loss
            self.restart()
            return False
        if level <= self.best:
            self.best, self.best_step, self.near_step = level, step, step
            self.scale = max(scale, self.scale / 2)
            self.since, self.highest = 0, smooth
            return False
        self.since += BLOCK
        if level <= self.best + self.swing:
            self.near_step = step
        goes_on = smooth >= self.highest and self.newest[0] < smooth
        self.highest = max(self.highest, smooth)
        if not (goes_on and self.since >= settings.slow_rows):
            return False
        limit = max(
            settings.slow_part * abs(self.best),
            settings.slow_z * self.scale,
            settings.slow_wander * Moves.of(blocks).wander,
            SWING_PART * self.swing,
        )
        return smooth - self.best >= limit

    def begin(self, blocks: Sequence[Block]) -> tuple[int, float]:
        """The step at which the rise began and the loss up to there: the earliest bend from a level
        into a line or a parabola that fits the blocks since the best one nearly as well as any. The
        best itself is the lowest of many, and may lie hundreds of rows before."""
        since = [block for block in blocks if block.step >= self.best_step]
        if len(since) < FEWEST_BENT:
            return self.near_step, self.best
        steps, levels = (np.array([b.step for b in since]), np.array([b.level for b in since]))
        fits = []
        for bend, power in product(steps[:-LOOKS], RISES):
            rise = np.maximum(steps - bend, 0.0) ** power
            slope, level = np.polyfit(rise, levels, 1)
            rest = float(((levels - level - slope * rise) ** 2).sum())
            fits.append((rest, int(bend), max(float(level), self.best)))
        most = min(fits)[0] * (1.0 + NEARLY / (len(since) - 3))
        bend, level = next((bend, level) for rest, bend, level in fits if rest <= most)
        return max(bend, self.near_step), level

    def see_rate(self, rate: float, step: int) -> None:
        """Take the newest learning rate, of `step`."""
        if rate == self.rate:
            return
        self.rate = rate
        if rate < self.highest_rate:
            self.lowest_rate = min(self.lowest_rate, rate)
        if rate > self.highest_rate:
            self.highest_rate, self.highest_rate_step = rate, step

    def note_change(self, step: int, gap: float, settings: DetectionSettings) -> None:
        """Somebody changed the run on purpose after `step`; rows are `gap` steps apart."""
        self.changed_until = max(self.changed_until, step + settings.horizon_at(gap))

    def restart(self) -> None:
        """What was best before says nothing of what comes."""
        self.best, self.best_step, self.scale, self.since = math.inf, 0, 0.0, 0
        self.highest, self.newest = -math.inf, []
