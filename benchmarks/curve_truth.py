"""What is right of one drawn curve, and what the monitor says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from benchmarks.curve_draws import Array, Curve
from spikeguard_core.detection.sample import SampleColumns
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.events import Closed, Event, Opened, Revised
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import Kind

BATCH = 200  # rows a message
RECOVERABLE, LINGERING, DIVERGENT = Kind.RECOVERABLE, Kind.LINGERING, Kind.DIVERGENT
SURELY = 1.5  # times the tolerance: damage that has to be named lingering
GUESS_PART, LEFT_PART = 0.95, 0.7  # of the first loss: back at guessing, left it before
HIGH = 10.0  # times the loss before
SLOW_PART, SLOW_DEVIATIONS = 0.12, 10.0  # of the loss (0.3 of 2.5): by then a slow rise is found
CALM_ROWS = 8  # before the onset, whose median is the loss before


@dataclass(slots=True)
class Incident:
    """One incident as the monitor tells it, in rows of the curve."""

    row: int  # at which it was opened
    onset: int
    before: float | None  # the loss before, as told
    way: str  # how it began
    kinds: list[tuple[int, Kind]] = field(default_factory=list)  # from a row on

    @property
    def kind(self) -> Kind:
        """At the end."""
        return self.kinds[-1][1]

    def called(self, kind: Kind) -> int | None:
        """The first row at which it was called so."""
        return next((row for row, named in self.kinds if named is kind), None)


def observed(curve: Curve) -> list[Incident]:
    """The incidents of a monitor that takes the curve in messages of `BATCH` rows."""
    monitor, events = Monitor(), list[Event]()
    steps, values = curve.steps.tolist(), curve.values.tolist()
    for at in range(0, len(steps), BATCH):
        part = slice(at, at + BATCH)
        rows = SampleColumns(steps[part], {"loss": values[part]}, [None] * len(steps[part]))
        events += monitor.observe(rows)
    events += monitor.end()
    spacing, found = steps[0], list[Incident]()
    for event in events:
        row = event.step // spacing - 1
        if isinstance(event, Opened):
            kinds = [(row, event.judgement.kind)]
            onset = event.onset_step // spacing - 1
            found.append(Incident(row, onset, event.pre_loss, _way(event), kinds))
        elif isinstance(event, Revised | Closed):
            found[-1].kinds.append((row, event.judgement.kind))
    return found


def _way(opened: Opened) -> str:
    if opened.judgement.kind is Kind.OUTLIER_BATCH:
        return "outlier batch"
    if opened.judgement.reason.startswith("the loss rises slowly"):
        return "slow rise"
    if opened.judgement.reason.startswith("the loss is exactly 0"):
        return "zero"
    return "jump or lift" if math.isfinite(opened.z) else "not finite"


def _horizon(curve: Curve) -> int:
    """Rows after the peak at which the kind is decided."""
    usual, spacing = DetectionSettings(), int(curve.steps[0])
    return max(usual.horizon_rows, round(usual.horizon_steps / spacing))


def _height(curve: Curve) -> float:
    deviation = curve.deviation[max(0, curve.onset - 8) : curve.onset + 1]
    return curve.size * float(np.median(deviation))


def _is_far(curve: Curve, excess: float) -> bool:
    """Whether a loss that stays `excess` above the curve may be called divergent by its height."""
    before, first = float(curve.base[curve.onset]), float(curve.base[0])
    guess = 0.0 < before < LEFT_PART * first and before + excess >= GUESS_PART * first
    return guess or excess >= 0.9 * (HIGH - 1.0) * max(
        abs(before), float(curve.deviation[curve.onset])
    )


def kinds_of(curve: Curve) -> set[Kind]:
    """The kinds that are right at the end; more than one where the truth lies on a border."""
    height, horizon = _height(curve), _horizon(curve)
    if curve.event in ("heal", "box", "second"):
        right = {RECOVERABLE}
        if curve.length <= 2:
            right.add(Kind.OUTLIER_BATCH)
        if curve.length * 1.5 + 6 >= horizon:  # it lasts as long as what is called lasting
            right |= {LINGERING, DIVERGENT} if _is_far(curve, height) else {LINGERING}
        return right
    if curve.event == "outlier":
        return {Kind.OUTLIER_BATCH, RECOVERABLE}
    if curve.event == "linger":
        return _lingering(curve, height / 2.0)
    if curve.event == "nan":
        rest = len(curve.values) - curve.onset
        if curve.length >= rest:
            return {DIVERGENT}
        return {RECOVERABLE} if curve.length <= 3 else {RECOVERABLE, LINGERING, DIVERGENT}
    if curve.event == "slow rise":
        return {LINGERING, DIVERGENT}
    return {DIVERGENT}


def _lingering(curve: Curve, left: float) -> set[Kind]:
    usual, at = DetectionSettings(), curve.onset
    rows = max(usual.settle_rows_sparse, usual.horizon_steps / int(curve.steps[0]))
    tolerance = max(
        usual.lasting_part * abs(float(curve.base[at])),
        usual.lasting_z * float(curve.deviation[at]) / math.sqrt(rows),
    )
    fall = float(curve.base[at - 1] - curve.base[at:].min())
    high = {DIVERGENT} if _is_far(curve, left) else set[Kind]()
    if left - max(0.0, fall) > SURELY * tolerance:
        return {LINGERING} | high
    if left < tolerance / SURELY:
        return {RECOVERABLE}
    return {RECOVERABLE, LINGERING} | high


def is_told(curve: Curve) -> bool:
    """Whether an event has to open an incident at all: not a slow rise that stays small, not a
    loss of zero where losses lie about zero."""
    if curve.event == "zero":
        return float(curve.base[curve.onset]) > 30.0 * float(curve.deviation[curve.onset])
    if curve.event == "slow rise":
        return float(np.max(_rise(curve))) >= 1.3 * slow_limit(curve)
    return curve.event != "outlier"


def slow_limit(curve: Curve) -> float:
    """By this much above its own best a slow rise has to be found."""
    part = SLOW_PART * abs(float(curve.base[curve.onset]))
    return max(part, SLOW_DEVIATIONS * float(curve.deviation[curve.onset]))


def _climbed(curve: Curve) -> Array:
    """How far a slow rise or a divergence has climbed at each row; shape (rows,)."""
    after = np.arange(len(curve.base)) - curve.onset + 1.0
    height = _height(curve)
    if curve.event == "diverge":
        before = float(curve.base[curve.onset])
        height = max(height, float(curve.base[0]) - before, 4.0 * abs(before))
    climbed: Array = height * np.clip(after / curve.length, 0.0, 1.0)
    return climbed


def _rise(curve: Curve) -> Array:
    """How far the curve without its noise lies above its best; shape (rows,)."""
    line = curve.base + _climbed(curve)
    rise: Array = line - np.minimum.accumulate(line)
    return rise


def _visible(curve: Curve) -> int:
    """The row from which delays are counted: of a divergence, where it is 10 deviations high."""
    if curve.event != "diverge":
        return curve.onset
    return int(np.argmax(_climbed(curve) >= 10.0 * curve.deviation[curve.onset]))


@dataclass(frozen=True, slots=True)
class Scored:
    """One curve with an event, against what the monitor said."""

    delay: int  # rows from the onset to the incident; -1 where none was opened
    second_delay: int  # of the second event
    kind: Kind | None  # at the end
    kind_right: bool
    before_near: bool  # within 2 % or 2 deviations
    before_seen: bool  # not outside what was observed
    rise: float  # of a slow rise, where it was found, as a part of `slow_limit`
    high_delay: int  # of a blow-up: rows from ten times the loss until it was called divergent


def scored(curve: Curve, incidents: list[Incident]) -> Scored:
    """Judge what was said of a curve with an event."""
    onset = curve.onset
    at_or_after = [one for one in incidents if one.row >= onset]
    if not at_or_after:
        return Scored(-1, -1, None, False, True, True, math.inf, -1)
    first = at_or_after[0]
    near, seen = (True, True) if first.before is None else _before(curve, first)
    second = -1
    if curve.second >= 0:
        second = next((o.row - curve.second for o in at_or_after[1:] if o.row >= curve.second), -1)
    rise = math.inf
    if curve.event == "slow rise":
        rise = float(_rise(curve)[first.row]) / slow_limit(curve)
    named = [one for one in incidents if one.row >= onset and one.way != "outlier batch"] or [first]
    last = named[-1] if curve.event in ("diverge", "blow-up", "slow rise") else first
    delay = max(0, first.row - _visible(curve))
    return Scored(
        delay, second, last.kind, last.kind in kinds_of(curve), near, seen, rise,
        _high_delay(curve, at_or_after),
    )  # fmt: skip


def _before(curve: Curve, first: Incident) -> tuple[bool, bool]:
    """Whether the loss before is near the truth, and among what was observed.

    The truth is anywhere the curve was in the eight rows before the onset, or before the row that
    was told as onset where the loss climbs, within 2 % or two deviations.
    """
    told = math.nan if first.before is None else first.before
    end = max(curve.onset, first.onset)
    if curve.event in ("diverge", "slow rise"):
        line = curve.base + _climbed(curve)
        rows = line[max(0, curve.onset - CALM_ROWS) : end]
    else:
        rows = curve.base[max(0, curve.onset - CALM_ROWS) : curve.onset]
    level, deviation = float(np.median(rows)), float(curve.deviation[curve.onset])
    off = max(float(rows.min()) - told, told - float(rows.max()), 0.0)
    known = curve.values[:end]
    near = off <= max(0.02 * abs(level), 2.0 * deviation)
    return near, float(known.min()) <= told <= float(known.max())


def _high_delay(curve: Curve, incidents: list[Incident]) -> int:
    if curve.event != "blow-up":
        return -1
    limit = HIGH * max(abs(float(curve.base[curve.onset])), float(curve.deviation[curve.onset]))
    high = curve.onset + int(np.argmax(curve.values[curve.onset :] > limit))
    called = [row for one in incidents if (row := one.called(DIVERGENT)) is not None]
    return max(0, min(called) - high) if called else -1
