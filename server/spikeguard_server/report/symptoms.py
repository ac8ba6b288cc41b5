"""What the curves show: losses before, at and after the spike, and what going back cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean

from spikeguard_core.diagnosis.change_effect import Effect, above_trend
from spikeguard_core.diagnosis.silent_failures import LIMIT, UNCHANGED
from spikeguard_core.events import Trend
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.damage import aftermath_of, stands_out
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.cost import money_of
from spikeguard_core.policy.finding import first_move_of
from spikeguard_protocol import (
    BatchRange,
    OptionalSignal,
    Outcome,
    Rollback,
    SegmentReason,
    Signal,
)
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.facts import PostMortem, RecordedCurve

LATER_STEPS = 100  # newest ones that tell where the loss came to
LEVEL_STEPS = 40  # whose mean tells whether it was level with its trend
GRAD_NORMS = (Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP)
STEP_SKIPPED = OptionalSignal.STEP_SKIPPED.value


@dataclass(frozen=True, slots=True)
class Symptoms:
    """Losses in nats a token; norms are global L2."""

    pre_loss: float | None
    peak_loss: float | None
    peak_step: int
    later_loss: float | None  # mean of the newest kept samples from `later_first` to `later_step`
    later_first: int | None
    later_step: int | None
    later_above: Effect | None  # how far that lies above the trend
    level_from: int | None  # the first step of `LEVEL_STEPS` that are as low as that
    grad_norm_signal: str | None
    grad_norm_peak: Peak | None
    non_finite_steps: int  # steps whose loss was not finite


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest finite value of a signal and its step, and at how many steps it was none."""

    value: float | None
    step: int | None
    not_finite: int = 0


@dataclass(frozen=True, slots=True)
class Lead:
    """The first signal to move, and how far ahead of the loss it was."""

    signal: str
    step: int
    steps: int | None  # ahead of the loss; None = the loss itself never moved


@dataclass(frozen=True, slots=True)
class Spent:
    """What the incident cost, as `domain/cost.py` defines it."""

    steps: int  # trained again
    dropped: int  # whose update was kept out of the weights, trained again or not
    stalled: int  # whose update rounded to nothing, trained again or not
    in_damage: int  # between onset and the last loss that stood out, not trained again
    steps_lost: int  # all of these, each step once
    again_s: float | None  # what the steps that were trained again had taken
    seconds: float | None  # what all lost steps had taken; None = pace unknown
    tokens: int | None
    money: float | None
    batches_skipped: int
    steps_off_trend: int  # from onset to close, in which the run was not healthy


def symptoms_of(facts: PostMortem) -> Symptoms:
    """The losses and norms that describe this spike."""
    incident, after = facts.incident, _kept_after(facts)
    trend = incident.trend
    later = after[-min(LATER_STEPS, max(1, len(after) // 2)) :]  # past what it fell through
    above = above_trend(trend, later) if later and trend else None
    peaks = peaks_of(facts)
    signal = next((s.value for s in GRAD_NORMS if s.value in peaks), None)
    return Symptoms(
        pre_loss=incident.pre_loss,
        peak_loss=incident.peak_loss,
        peak_step=incident.peak_step,
        later_loss=fmean([value for _, value in later]) if later else None,
        later_first=later[0][0] if later else None,
        later_step=later[-1][0] if later else None,
        later_above=above,
        level_from=_level_from(trend, after, above.loss) if trend and above else None,
        grad_norm_signal=signal,
        grad_norm_peak=None if signal is None else peaks[signal],
        non_finite_steps=sum(not math.isfinite(v) for _, v in _samples(facts, Signal.LOSS)),
    )


def lead_of(facts: PostMortem) -> Lead | None:
    """Which signal moved first; None where no first move is on record."""
    moves = facts.incident.first_moves
    if not moves:
        return None
    first, loss = first_move_of(facts.incident), moves.get(Signal.LOSS)
    return Lead(first.signal, first.step, None if loss is None else loss - first.step)


def spent_by(facts: PostMortem) -> Spent:
    """Every step that was lost, and its price."""
    rollbacks = list(_executed(facts))
    again = sum(max(0, (c.applied_step or a.step) - a.step) for c, a in rollbacks)
    undone, kept = _Lost(facts.step_time_s), _Lost(facts.step_time_s)
    in_damage = dropped = stalled = 0
    for curve, steps in zip(facts.curves, _open_steps(facts), strict=True):
        behind = math.inf if curve.kept_to is None else curve.kept_to
        out = _dropped_steps(curve, steps)
        still = _stalled_steps(curve, steps)
        damaged = _damaged_steps(curve, facts.incident, steps)
        dropped += len(out)
        stalled += len(still)
        if curve.kept_to is not None:
            damaged = range(damaged.start, min(damaged.stop, curve.kept_to + 1))
        in_damage += len(damaged)
        undone.take(curve, _Steps(others={step for step in curve.steps if step > behind}))
        others = {step for step in out | still if step <= behind and step not in damaged}
        kept.take(curve, _Steps(damaged, others))
    again_s, kept_s = undone.seconds(again), kept.seconds(kept.steps)
    seconds = None if again_s is None or kept_s is None else again_s + kept_s
    lost = again + kept.steps
    return Spent(
        steps=again,
        dropped=dropped,
        stalled=stalled,
        in_damage=in_damage,
        steps_lost=lost,
        again_s=again_s,
        seconds=seconds,
        tokens=None if facts.tokens_per_step is None else lost * facts.tokens_per_step,
        money=None if seconds is None else money_of(seconds, facts.price_per_hour),
        batches_skipped=_union([a.skip for _, a in rollbacks if a.skip is not None]),
        steps_off_trend=_off_trend(facts, again),
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of a curve: all of a stretch, however long, and others beside it."""

    stretch: range = range(0)
    others: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.stretch) + len(self.others)

    def __contains__(self, step: int) -> bool:
        return step in self.stretch or step in self.others


@dataclass
class _Lost:
    """Lost steps, with the time of those that measured it."""

    pace_s: float | None
    steps: int = 0
    measured: int = 0
    measured_s: float = 0.0

    def take(self, curve: RecordedCurve, lost: _Steps) -> None:
        self.steps += len(lost)
        column = curve.values.get(Signal.STEP_TIME, ())
        for step, value in zip(curve.steps, column, strict=False):
            if step in lost and value is not None and math.isfinite(value):
                self.measured, self.measured_s = self.measured + 1, self.measured_s + value

    def seconds(self, steps: int) -> float | None:
        """Of `steps` in all; None where some are not measured and the pace is unknown."""
        if steps <= 0:
            return 0.0
        rest = max(0, steps - self.measured)
        if rest and self.pace_s is None:
            return None
        return min(1.0, steps / max(self.measured, 1)) * self.measured_s + rest * (
            self.pace_s or 0.0
        )


def _dropped_steps(curve: RecordedCurve, steps: range) -> set[int]:
    """Those of `steps` whose update did not reach the weights."""
    columns = [curve.values.get(name, ()) for name in (Signal.UPDATE_DROPPED, STEP_SKIPPED)]
    return {
        step
        for column in columns
        for step, value in zip(curve.steps, column, strict=False)
        if value is not None and value >= 1.0 and step in steps
    }


def _stalled_steps(curve: RecordedCurve, steps: range) -> set[int]:
    """Those of `steps` from a measurement that shows a standstill to the next that does not:
    it is measured now and then."""
    shares = dict(zip(curve.steps, curve.values.get(UNCHANGED, ()), strict=False))
    found, still = set[int](), False
    for step in curve.steps:
        share = shares.get(step)
        still = still if share is None else share >= LIMIT
        if still and step in steps:
            found.add(step)
    return found


def _damaged_steps(curve: RecordedCurve, incident: Incident, steps: range) -> range:
    """From the onset to the last two rows in a row that stood out, on this segment: a row alone,
    long after, is noise. Nothing bounds how far apart the two lie."""
    losses = curve.values.get(Signal.LOSS, ())
    rows = [
        (step, _stood_out(step, value, incident))
        for step, value in zip(curve.steps, losses, strict=False)
        if value is not None and step in steps
    ]
    first = next((step for step, out in rows if out), None)
    if first is None:
        return range(0)
    ends = [step for (_, before), (step, out) in pairwise(rows) if before and out]
    return range(first, (ends[-1] if ends else first) + 1)


def _open_steps(facts: PostMortem) -> list[range]:
    """The steps of each curve at which the incident was open: none of those after its close."""
    onset, end = facts.incident.onset_step, facts.incident.closed_step
    closing, found = _closing_curve(facts), list[range]()
    for place, curve in enumerate(facts.curves):
        last = curve.steps[-1] if curve.steps else onset - 1
        if end is not None and closing is not None and place >= closing:
            last = end if place == closing else onset - 1
        found.append(range(onset, last + 1))
    return found


def _closing_curve(facts: PostMortem) -> int | None:
    """The place among the curves of the one on which it closed, behind its own rollbacks; None
    where that is not kept."""
    left, end = len(facts.rollbacks), facts.incident.closed_step
    for place, curve in enumerate(facts.curves):
        left -= place > 0 and curve.reason is SegmentReason.ROLLBACK
        if end is None or left > 0 or not curve.steps:
            continue
        if curve.steps[0] <= end <= curve.steps[-1]:
            return place
    return None


def peaks_of(facts: PostMortem) -> dict[str, Peak]:
    """By signal, while it was open; not of the branch on which it recovered."""
    found: dict[str, Peak] = {}
    recovered = facts.rollbacks and facts.incident.outcome is Outcome.RECOVERED
    leave_out = _closing_curve(facts) if recovered else None
    for place, (curve, steps) in enumerate(zip(facts.curves, _open_steps(facts), strict=True)):
        if place == leave_out:
            continue
        for name, column in curve.values.items():
            for step, value in zip(curve.steps, column, strict=False):
                if value is not None and step in steps:
                    found[name] = _higher(found.get(name), value, step)
    return found


def _higher(known: Peak | None, value: float, step: int) -> Peak:
    known = known or Peak(None, None)
    if not math.isfinite(value):
        return replace(known, not_finite=known.not_finite + 1)
    if known.value is None or value > known.value:
        return replace(known, value=value, step=step)
    return known


def _stood_out(step: int, loss: float, incident: Incident) -> bool:
    if incident.trend is None:
        return not math.isfinite(loss)
    return stands_out(incident, loss - incident.trend.at(step))


def _executed(facts: PostMortem) -> Iterator[tuple[CommandRow, Rollback]]:
    for command in facts.commands:
        if isinstance(command.action, Rollback) and command.state in EXECUTED:
            yield command, command.action


def _union(ranges: list[BatchRange]) -> int:
    """Positions covered; a widened skip covers the narrower one. A job says how many a step reads,
    so they are not counted one by one."""
    covered = reached = 0
    for skip in sorted(ranges, key=lambda skip: skip.first):
        covered += max(0, skip.end - max(skip.first, reached))
        reached = max(reached, skip.end)
    return covered


def _off_trend(facts: PostMortem, trained_again: int) -> int:
    incident = facts.incident
    end = incident.newest_step if incident.closed_step is None else incident.closed_step
    return max(0, end - incident.onset_step + trained_again)


def _samples(facts: PostMortem, signal: str) -> Iterator[tuple[int, float]]:
    for curve in facts.curves:
        for step, value in zip(curve.steps, curve.values.get(signal, ()), strict=False):
            if value is not None and step >= facts.incident.onset_step:
                yield step, value


def _level_from(trend: Trend, rows: list[tuple[int, float]], later: float) -> int | None:
    """The first step in the band of the first stretch whose mean is as low as the loss was `later`,
    in nats above the trend, by the noise of such a mean."""
    most = max(0.0, later) + 2.0 * trend.scale / math.sqrt(LEVEL_STEPS)
    above = [loss - trend.at(step) for step, loss in rows]
    for first, (step, _) in enumerate(rows[: len(rows) - LEVEL_STEPS + 1]):
        inside = above[first] <= trend.band * trend.scale
        if inside and fmean(above[first : first + LEVEL_STEPS]) <= most:
            return step
    return None


def _kept_after(facts: PostMortem) -> list[tuple[int, float]]:
    """(step, loss) of the kept steps up to `aftermath_of` the onset, or to the close where that is
    later, or to the run's next incident; none while samples up to there still come."""
    if facts.followed_to is not None:
        return []
    kept: dict[int, float] = {}
    for curve in facts.curves:
        last = math.inf if curve.kept_to is None else curve.kept_to
        column = curve.values.get(Signal.LOSS, ())
        pairs = zip(curve.steps, column, strict=True)
        kept |= {step: v for step, v in pairs if v is not None and step <= last}
    incident = facts.incident
    peak, closed = incident.peak_step, incident.closed_step or 0
    end = max(peak + aftermath_of(incident.onset_step), closed) + 1
    end = end if facts.next_onset is None else min(end, facts.next_onset)
    after = sorted(step for step in kept if peak < step < end)
    return [(step, kept[step]) for step in after]
