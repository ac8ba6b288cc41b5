"""What the incident cost, in steps and in times; docs/policy.md ("What a cost is") says which steps
count, docs/alerts.md what the times mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from spikeguard_core.detection.own_signals import MOST_UNCHANGED
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.incident import Incident, stands_out
from spikeguard_core.policy.cost import money_of
from spikeguard_protocol import BatchRange, OptionalSignal, Outcome, Rollback, SegmentReason, Signal
from spikeguard_protocol.phrases import duration_phrase
from spikeguard_server.report.document import Block, Table
from spikeguard_server.report.facts import PostMortem, RecordedCurve
from spikeguard_server.report.symptoms import branches_of, open_steps
from spikeguard_server.report.wording import large, number, plural

BACK = frozenset({Outcome.HEALED, Outcome.RECOVERED})  # on its trend
NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Spent:
    """What the incident cost."""

    steps: int  # trained again
    dropped: int  # whose update was kept out of the weights, trained again or not
    stalled: int  # whose update rounded to nothing, trained again or not
    in_damage: int  # between onset and the last loss that stood out, not trained again
    steps_lost: int  # all of these, each step once
    seconds: float | None  # what all lost steps had taken; None = pace unknown
    tokens: int | None
    money: float | None
    batches_skipped: int


def spent_by(facts: PostMortem) -> Spent:
    """Every step that was lost, and its price."""
    done = [c.action for c in facts.commands if c.state in EXECUTED]
    skips = [act.skip for act in done if isinstance(act, Rollback) and act.skip is not None]
    again = sum(max(0, start - end) for start, end in facts.rollbacks) + _restarted(facts)
    again_took, kept_took = list[float](), list[float]()  # seconds of those that measured it
    in_damage = dropped = stalled = kept = 0
    for curve, steps in zip(facts.curves, open_steps(facts), strict=True):
        behind = math.inf if curve.kept_to is None else curve.kept_to
        out, still = _dropped_steps(curve, steps), _stalled_steps(curve, steps)
        damaged = _damaged_steps(curve, facts.incident, steps)
        if curve.kept_to is not None:
            damaged = range(damaged.start, min(damaged.stop, curve.kept_to + 1))
        others = {step for step in out | still if step <= behind and step not in damaged}
        dropped, stalled = dropped + len(out), stalled + len(still)
        in_damage, kept = in_damage + len(damaged), kept + len(damaged) + len(others)
        times = [row for row in curve.rows(Signal.STEP_TIME) if math.isfinite(row[1])]
        again_took += [took for step, took in times if step > behind]
        taken = {*damaged, *others}
        kept_took += [took for step, took in times if step <= behind and step in taken]
    again_s = _seconds(again, again_took, facts.step_time_s)
    kept_s = _seconds(kept, kept_took, facts.step_time_s)
    seconds = None if again_s is None or kept_s is None else again_s + kept_s
    lost = again + kept
    return Spent(
        steps=again,
        dropped=dropped,
        stalled=stalled,
        in_damage=in_damage,
        steps_lost=lost,
        seconds=seconds,
        tokens=None if facts.tokens_per_step is None else lost * facts.tokens_per_step,
        money=None if seconds is None else money_of(seconds, facts.price_per_hour),
        batches_skipped=_union(skips),
    )


def _restarted(facts: PostMortem) -> int:
    """Steps that a job trained again because it was started from before them while it was open."""
    return sum(
        max(0, before.steps[-1] + 1 - after.steps[0])
        for before, after in pairwise(branches_of(facts))
        if after.reason is not SegmentReason.ROLLBACK and before.steps and after.steps
    )


def _seconds(steps: int, took: list[float], pace_s: float | None) -> float | None:
    """Of `steps`: those that measured it as they took, the others the pace before the onset."""
    measured = took[:steps]
    rest = steps - len(measured)
    if rest and pace_s is None:
        return None
    return sum(measured) + rest * (pace_s or 0.0)


def _dropped_steps(curve: RecordedCurve, steps: range) -> set[int]:
    """Those of `steps` whose update did not reach the weights."""
    rows = [*curve.rows(Signal.UPDATE_DROPPED), *curve.rows(OptionalSignal.STEP_SKIPPED)]
    return {step for step, value in rows if value >= 1.0 and step in steps}


def _stalled_steps(curve: RecordedCurve, steps: range) -> set[int]:
    """Those of `steps` from a measurement that shows a standstill to the next that does not:
    it is measured now and then."""
    shares = dict(curve.rows(OptionalSignal.UNCHANGED_PARAMETERS))
    found, still = set[int](), False
    for step in curve.steps:
        share = shares.get(step)
        still = still if share is None else share >= MOST_UNCHANGED
        if still and step in steps:
            found.add(step)
    return found


def _damaged_steps(curve: RecordedCurve, incident: Incident, steps: range) -> range:
    """From the onset to the last two rows in a row that stood out, on this segment: a row alone,
    long after, is noise. Nothing bounds how far apart the two lie."""
    rows = [
        (step, _stood_out(step, loss, incident))
        for step, loss in curve.rows(Signal.LOSS)
        if step in steps
    ]
    first = next((step for step, out in rows if out), None)
    if first is None:
        return range(0)
    ends = [step for (_, before), (step, out) in pairwise(rows) if before and out]
    return range(first, (ends[-1] if ends else first) + 1)


def _stood_out(step: int, loss: float, incident: Incident) -> bool:
    if incident.trend is None:
        return not math.isfinite(loss)
    return stands_out(incident, loss - incident.trend.at(step))


def _union(ranges: list[BatchRange]) -> int:
    """Positions covered; a widened skip covers the narrower one. A job says how many a step reads,
    so they are not counted one by one."""
    covered = reached = 0
    for skip in sorted(ranges, key=lambda skip: skip.first):
        covered += max(0, skip.end - max(skip.first, reached))
        reached = max(reached, skip.end)
    return covered


def lost_words(facts: PostMortem, spent: Spent) -> str:
    """`189 steps (4.3 min, 99.1 million tokens, 2.36 USD)`; of nothing lost `no step`."""
    if not spent.steps_lost:
        return "no step"
    more = [duration_phrase(spent.seconds)] if spent.seconds is not None else []
    if spent.tokens is not None:
        more.append(f"{large(spent.tokens)} tokens")
    if spent.money is not None:
        more.append(f"{spent.money:,.2f} {facts.currency}")
    steps = plural(spent.steps_lost, "step")
    return f"{steps} ({', '.join(more)})" if more else steps


def cost_blocks(facts: PostMortem) -> tuple[Block, ...]:
    """What was lost, and what the lost steps are made up of."""
    spent, newest = spent_by(facts), facts.attempts[-1] if facts.attempts else None
    parts = {
        "Steps trained again": spent.steps,
        "Updates dropped": spent.dropped,
        "Updates that rounded to nothing": spent.stalled,
        "Steps in damage, not trained again": spent.in_damage,
    }
    if not spent.steps_lost:
        return ("No step was lost.",)
    on_cpu = newest is not None and newest.settings.get("device") == "cpu"
    size = None if newest is None else newest.world_size
    hours = None if spent.seconds is None or size is None else spent.seconds * size / 3600.0
    money = NOT_KNOWN if spent.money is None else f"{spent.money:,.2f} {facts.currency}"
    rows = [(name, f"{count:,}") for name, count in parts.items() if count]
    said: tuple[str, ...] = ()
    if len(rows) > 1:
        rows.append(("Steps lost", f"{spent.steps_lost:,}"))
        said = ("Of a step that was lost in two ways one is counted.",)
    rows += [
        ("Time", NOT_KNOWN if spent.seconds is None else duration_phrase(spent.seconds)),
        ("Tokens", NOT_KNOWN if spent.tokens is None else large(spent.tokens)),
        ("Rank-hours (CPU)" if on_cpu else "GPU-hours", _hours(hours)),
        ("Money", "no price was set" if facts.price_per_hour is None else money),
        *([("Batches skipped", f"{spent.batches_skipped:,}")] if spent.batches_skipped else []),
    ]
    return (Table(("", "lost"), tuple(rows), frozenset({1})), *said)


def _hours(hours: float | None) -> str:
    if hours is None:
        return NOT_KNOWN
    return "<0.001" if 0.0 < hours < 0.001 else number(hours, 3)


@dataclass(frozen=True, slots=True)
class IncidentFigures:
    """Figures of one closed incident; None = not known, or nothing of the kind happened."""

    detection_steps: int  # from the onset to the step at which it opened
    decision_s: float | None  # from the first proposal to the first decision, whoever gave it
    decided_by: str | None  # person or policy
    recovery_s: float | None  # until the close, of one that ended with the loss back on its trend
    outcome: str | None  # of a recovery
    lost_steps: int
    lost_s: float | None


def figures_of(facts: PostMortem) -> IncidentFigures:
    """The figures of an incident; watching asks nobody, so it is no decision."""
    incident, spent, asked = facts.incident, spent_by(facts), facts.acting
    decided = min(((c.decided_at, c.automatic) for c in asked if c.decided_at), default=None)
    proposed_at = min((c.proposed_at for c in asked), default=facts.opened_at)
    recovered = incident.outcome if incident.outcome in BACK else None
    open_s = (facts.closed_at - facts.opened_at).total_seconds()
    return IncidentFigures(
        detection_steps=max(0, incident.detected_step - incident.onset_step),
        decision_s=max(0.0, (decided[0] - proposed_at).total_seconds()) if decided else None,
        decided_by=("policy" if decided[1] else "person") if decided else None,
        recovery_s=open_s if recovered else None,
        outcome=recovered.value if recovered else None,
        lost_steps=spent.steps_lost,
        lost_s=spent.seconds,
    )
