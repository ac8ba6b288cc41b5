"""What the curves show: losses before, at and after the spike, and the largest values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean

from spikeguard_core.diagnosis.change_effect import BEFORE, FEWEST_ROWS, Effect, above_trend
from spikeguard_core.lifecycle.incident import aftermath_of
from spikeguard_protocol import Outcome, Signal
from spikeguard_server.report.facts import PostMortem, RecordedCurve

LATER_STEPS = 100  # newest ones that tell where the loss came to


@dataclass(frozen=True, slots=True)
class Symptoms:
    """Where the loss came to, in nats a token."""

    later_loss: float | None  # mean of the newest kept samples from `later_first` to `later_step`
    later_first: int | None
    later_step: int | None
    later_above: Effect | None  # how far that lies above the trend


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest finite value of a signal, its step, the least one, and at how many steps it was
    none."""

    value: float | None
    step: int | None
    least: float | None
    not_finite: int


def symptoms_of(facts: PostMortem) -> Symptoms:
    """Where the loss of this spike came to."""
    incident, after = facts.incident, _kept_after(facts)
    later = after[-min(LATER_STEPS, max(1, len(after) // 2)) :]  # past what it fell through
    finite = [row for row in later if math.isfinite(row[1])]
    before, above = values_before(facts, Signal.LOSS)[-BEFORE:], None
    if incident.trend is not None and min(len(finite), len(before) // 2) >= FEWEST_ROWS:
        above = above_trend(incident.trend, incident.onset_step - 1, before, finite)
    return Symptoms(
        later_loss=fmean([value for _, value in later]) if later else None,
        later_first=later[0][0] if later else None,
        later_step=later[-1][0] if later else None,
        later_above=above,
    )


def values_before(facts: PostMortem, signal: str) -> list[tuple[int, float]]:
    """(step, value) of a signal on the way to the onset, as far as it is kept and finite."""
    found, onset = dict[int, float](), facts.incident.onset_step
    for curve in facts.curves:
        rows = curve.rows(signal)
        found |= {step: value for step, value in rows if step < onset and math.isfinite(value)}
        if curve.segment == facts.incident.segment:
            break
    return sorted(found.items())


def open_curves(facts: PostMortem) -> list[tuple[RecordedCurve, range]]:
    """Each curve with the steps at which the incident was open: none of those after its close."""
    onset, end = facts.incident.onset_step, facts.incident.closed_step
    branches, found, over = branches_of(facts), list[tuple[RecordedCurve, range]](), False
    for curve in facts.curves:
        last = curve.steps[-1] if curve.steps and not over else onset - 1
        if end is not None and branches and curve is branches[-1]:
            last, over = end, True
        found.append((curve, range(onset, last + 1)))
    return found


def branches_of(facts: PostMortem) -> Sequence[RecordedCurve]:
    """The curves on which it was open: that of its onset, and one for each rollback and restart up
    to the close. Empty where those are not kept."""
    segments = [curve.segment for curve in facts.curves]
    if facts.incident.closed_step is None or facts.incident.segment not in segments:
        return ()
    first = segments.index(facts.incident.segment)
    restarts = sum(facts.opened_at < each.started_at < facts.closed_at for each in facts.attempts)
    found = facts.curves[first : first + 1 + len(facts.rollbacks) + restarts]
    return found if len(found) > len(facts.rollbacks) + restarts else ()


def peaks_of(facts: PostMortem) -> dict[str, Peak]:
    """By signal, while it was open; not of the branch on which it recovered."""
    found: dict[str, list[tuple[int, float]]] = {}
    branches = branches_of(facts)
    recovered = facts.incident.outcome is Outcome.RECOVERED and len(branches) > 1
    for curve, steps in open_curves(facts):
        if recovered and curve is branches[-1]:
            continue
        for name in curve.values:
            found.setdefault(name, []).extend(row for row in curve.rows(name) if row[0] in steps)
    return {name: _peak(rows) for name, rows in found.items() if rows}


def _peak(rows: Sequence[tuple[int, float]]) -> Peak:
    finite = [row for row in rows if math.isfinite(row[1])]
    step, value = max(finite, key=itemgetter(1), default=(None, None))
    least = min((value for _, value in finite), default=None)
    return Peak(value, step, least, len(rows) - len(finite))


def _kept_after(facts: PostMortem) -> list[tuple[int, float]]:
    """(step, loss) of the kept steps up to `aftermath_of` the onset, or to the close where that is
    later, or to the run's next incident; none while samples up to there still come."""
    if facts.followed_to is not None:
        return []
    kept: dict[int, float] = {}
    for curve in facts.curves:
        last = math.inf if curve.kept_to is None else curve.kept_to
        kept |= {step: loss for step, loss in curve.rows(Signal.LOSS) if step <= last}
    incident = facts.incident
    peak, closed = incident.peak_step, incident.closed_step or 0
    end = max(peak + aftermath_of(incident.onset_step), closed) + 1
    end = end if facts.next_onset is None else min(end, facts.next_onset)
    return sorted((step, loss) for step, loss in kept.items() if peak < step < end)
