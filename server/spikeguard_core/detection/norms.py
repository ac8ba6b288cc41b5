"""The signals that may move before the loss: norms, judged in log space.

A leading signal warns and is evidence. Two open an incident, since a run that is spoilt may show in
nothing else: weights half as large again from one row to the next, and gradients that are gone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spikeguard_core.detection.baseline import KEPT, Baseline
from spikeguard_core.detection.noise import Array, Judged, windows
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_protocol import Signal

LEADING: tuple[str, ...] = (
    Signal.UPDATE_NORM.value,
    Signal.UPDATE_NORM_SAMPLED.value,
    Signal.GRAD_NORM.value,
    Signal.GRAD_NORM_AT_STEP.value,
    Signal.ADAM_V_NORM.value,
    Signal.PARAM_NORM.value,
)
LEAST = 1e-30  # a norm of zero is a very small one
LEAST_NOISE = 0.01  # of a logarithm: 1 % of the norm
WARM_UP = 24  # rows until the first judgement: a norm's first rows say little
LASTING = 64  # rows away in a row after which the new level is learnt
GROWN = math.log(1.5)  # of the usual norm of the weights: no update does that from row to row
GROWN_ROWS = 2  # in a row
GONE = math.log(1e-3)  # of the usual norm of the gradients, below which nothing is trained
GONE_ROWS = 10  # in a row
FEWEST_VALUES = 12  # of the rows kept before: fewer are rounded, and so may a 0 be
MOST_TOLD = 700.0  # of a logarithm, whose exponential is a float
ANEW = 5  # calm rows after which a signal that moves has begun anew


@dataclass(slots=True)
class Moves:
    """Whether a signal is off its baseline, and since when."""

    first_step: int | None = None  # of the present excursion
    last_step: int = 0  # when it was away last
    first_z: float = 0.0
    away: int = 0  # anomalous rows of the present excursion
    quiet: int = 0  # rows since it was last away
    warned: bool = False  # a precursor was told of the present excursion

    @property
    def moved_step(self) -> int | None:
        """Where what it does now began; None while it is calm."""
        return self.first_step if self.quiet < ANEW else None

    def moved_by(self, step: int, gap: float) -> int | None:
        """Where what led to `step` began; `gap`: usual distance of the loss's rows, in steps.

        None where it was over some rows before: of a signal that is measured now and then its own
        rows reach far back.
        """
        recent = not self.quiet or step - self.last_step < ANEW * gap
        return self.moved_step if recent else None

    def see(self, step: int, z: float, settings: DetectionSettings) -> None:
        """Take one more row."""
        if z < settings.confirm_z:
            self.rest(1, settings)
            return
        if self.first_step is None or self.quiet >= ANEW:
            self.first_step, self.first_z = step, z
        self.away = self.away + 1 if self.quiet == 0 else 1
        self.first_z = max(self.first_z, z)
        self.last_step, self.quiet = step, 0

    def rest(self, rows: int, settings: DetectionSettings) -> None:
        """So many calm rows."""
        self.quiet += rows
        if self.quiet >= settings.precursor_quiet:
            self.first_step, self.warned = None, False
        self.away, self.first_z = 0, 0.0

    def warns(self, z: float, settings: DetectionSettings) -> bool:
        """Whether this row makes a precursor: far off twice running, once an excursion."""
        if self.warned or self.away < 2 or max(z, self.first_z) < settings.precursor_z:
            return False
        self.warned = True
        return True


def _of_norms(*, drifting: bool = False) -> Baseline:
    return Baseline(falling=False, drifting=drifting, floor_part=0.0, floor=LEAST_NOISE)


def leading_of(name: str) -> Leading:
    """What is known of a signal that was never seen."""
    if name == Signal.PARAM_NORM:
        return Leading(_of_norms(drifting=True), spoilt_rows=GROWN_ROWS)
    of_gradients = name in (Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP)
    return Leading(spoilt_rows=GONE_ROWS if of_gradients else None)


@dataclass(slots=True)
class Leading:
    """One leading signal: its baseline and whether it is away from it."""

    baseline: Baseline = field(default_factory=_of_norms)
    moves: Moves = field(default_factory=Moves)
    lone: tuple[int, float, float, float] | None = None  # step, value, usual value, z: one row off
    spoilt_rows: int | None = None  # in a row, from which on it opens an incident
    spoilt: int = 0  # newest rows that show a spoilt run,
    spoilt_step: int = 0  # the first of them,
    above: float = 0.0  # and how far its logarithm lay above the usual one, of the last

    @property
    def is_quiet(self) -> bool:
        """Whether no row of it waits for the next."""
        return self.lone is None and not self.spoilt

    @property
    def opens_incident(self) -> bool:
        """Whether it shows a spoilt run, however calm the loss is."""
        return self.spoilt_rows is not None and self.spoilt >= self.spoilt_rows

    away = opens_incident

    @property
    def moved_step(self) -> int | None:
        """Where what it does now began."""
        return self.spoilt_step if self.spoilt else self.moves.moved_step

    def warns(self, z: float, settings: DetectionSettings) -> bool:
        """Whether this row makes a precursor, or opens an incident."""
        return self.spoilt == self.spoilt_rows or self.moves.warns(z, settings)

    @property
    def reason(self) -> str:
        """Where it stands, in words that follow its name."""
        usual = f"the usual {math.exp(self.baseline.level):.4g}"
        if self.above < 0.0:
            return f"is less than a thousandth of {usual}: nothing reaches the weights"
        return f"is {math.exp(min(self.above, MOST_TOLD)):.2g} times {usual}"

    def begin_anew(self) -> None:
        """Learn the level that it is at now."""
        self.moves, self.spoilt = Moves(), 0
        self.baseline.restart()

    def look(self, step: int, value: float, frozen: bool, settings: DetectionSettings) -> float:
        """Judge one value, keep it if calm and not `frozen`; returns z, inf if not finite."""
        z = math.inf
        if math.isfinite(value):
            z = self._look(step, math.log(max(value, LEAST)), frozen, settings)
        self.moves.see(step, z, settings)
        alone = self.moves.away == 1 and settings.precursor_z <= z < math.inf
        self.lone = (step, value, math.exp(self.baseline.level), z) if alone else None
        return z

    def calm_rows(self, values: Array, settings: DetectionSettings) -> tuple[int, Judged]:
        """How many of these rows are calm up to the first that is not; only while it `is_quiet`."""
        levels = np.array(list(map(math.log, np.maximum(values, LEAST).tolist())))
        judged = self.baseline.judge(levels)
        odd = ~(judged.z < settings.confirm_z)
        if odd.any():
            known = self.baseline.values
            line = np.concatenate([np.full(KEPT - len(known), -np.inf), known, levels])
            odd &= ~(levels <= windows(line, KEPT, KEPT, len(levels)).max(axis=1))
        odd |= ~np.isfinite(values)
        if self.spoilt_rows == GONE_ROWS:
            odd |= levels < judged.level + GONE
        return (int(odd.argmax()) if odd.any() else len(values)), judged

    def take(
        self, steps: Sequence[int], judged: Judged, rows: int, settings: DetectionSettings
    ) -> None:
        """Keep the first `rows` of rows that `calm_rows` judged."""
        if rows:
            self.baseline.take(steps, judged, rows)
            self.moves.rest(rows, settings)

    def _see_spoilt(self, step: int, above: float) -> None:
        """Take one more row, whose logarithm lies so far above the usual one."""
        if self.spoilt_rows == GROWN_ROWS:
            spoilt = above >= GROWN and (self.spoilt > 0 or not self.moves.away)
        else:
            spoilt = above < GONE and len(set(self.baseline.values)) >= FEWEST_VALUES
        self.spoilt = self.spoilt + 1 if spoilt else 0
        self.spoilt_step = step if self.spoilt == 1 else self.spoilt_step
        self.above = above

    def _look(self, step: int, level: float, frozen: bool, settings: DetectionSettings) -> float:
        baseline = self.baseline
        if not frozen and (baseline.is_apart(step) or self.moves.away >= LASTING):
            baseline.restart()
        if baseline.count < WARM_UP:
            if not frozen:
                baseline.learn(step, level)
            return 0.0
        judged = baseline.judge(np.array([level]))
        z = float(judged.z[0])
        if z >= settings.confirm_z and level <= max(baseline.values):
            z = 0.0  # as high just now: a clipped norm that is back at its bound is no excursion
        if self.spoilt or (self.spoilt_rows and abs(z) >= settings.precursor_z):
            self._see_spoilt(step, level - float(judged.level[0]))
        if z < settings.suspect_z and not frozen and not self.spoilt:
            baseline.take([step], judged, 1)
        return z
