"""What the incident cost, in steps and in times; docs/policy.md ("What a cost is") says which steps
count, docs/alerts.md what the times mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from spikeguard_core.detection.own_signals import MOST_UNCHANGED
from spikeguard_core.lifecycle.incident import Incident, stands_out
from spikeguard_core.policy.cost import money_of
from spikeguard_protocol import OptionalSignal, Outcome, SegmentReason, Signal
from spikeguard_protocol.phrases import duration_phrase
from spikeguard_server.report.document import Block, Table
from spikeguard_server.report.facts import PostMortem, RecordedCurve
from spikeguard_server.report.symptoms import branches_of, open_curves
from spikeguard_server.report.wording import large, money, number, price_of

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
    again = sum(max(0, start - end) for start, end in facts.rollbacks) + _restarted(facts)
    again_took, kept_took = list[float](), list[float]()  # seconds of those that measured it
    in_damage = dropped = stalled = kept = 0
    for curve, steps in open_curves(facts):
        behind = math.inf if curve.kept_to is None else curve.kept_to
        rows = [*curve.rows(Signal.UPDATE_DROPPED), *curve.rows(OptionalSignal.STEP_SKIPPED)]
        out = {step for step, value in rows if value >= 1.0 and step in steps}
        still = _stalled_steps(curve, steps)
        damaged = _damaged_steps(curve, facts.incident, steps)
        if curve.kept_to is not None:
            damaged = range(damaged.start, min(damaged.stop, curve.kept_to + 1))
        others = {step for step in out | still if step <= behind and step not in damaged}
        dropped, stalled = dropped + len(out), stalled + len(still)
        in_damage, kept = in_damage + len(damaged), kept + len(damaged) + len(others)
        times = [row for row in curve.rows(Signal.STEP_TIME) if math.isfinite(row[1])]
        again_took += [took for step, took in times if step > behind]
        kept_took += [took for step, took in times if step in damaged or step in others]
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
        batches_skipped=sum(map(len, facts.skipped)),
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
    long after, is noise. Nothing bounds how far apart the two lie: no set could hold them."""
    trend, rows = incident.trend, list[tuple[int, bool]]()
    for step, loss in curve.rows(Signal.LOSS):
        if step in steps:
            if trend is None:
                rows.append((step, not math.isfinite(loss)))
            else:
                rows.append((step, stands_out(incident, loss - trend.at(step))))
    first = next((step for step, out in rows if out), None)
    if first is None:
        return range(0)
    ends = [step for (_, before), (step, out) in pairwise(rows) if before and out]
    return range(first, (ends[-1] if ends else first) + 1)


def lost_words(facts: PostMortem) -> str:
    """`189 steps (4.3 min, 99.1 million tokens, 2.36 USD)`; empty where nothing was lost."""
    spent = spent_by(facts)
    if not spent.steps_lost:
        return ""
    tokens = "" if spent.tokens is None else f"{large(spent.tokens)} tokens"
    return price_of(spent.steps_lost, spent.seconds, spent.money, facts.currency, tokens)


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
        skipped = f" Batches skipped: {spent.batches_skipped:,}." if spent.batches_skipped else ""
        return (f"No step was lost.{skipped}",)
    on_cpu = newest is not None and newest.settings.get("device") == "cpu"
    size = None if newest is None else newest.world_size
    spent_hours = NOT_KNOWN
    if spent.seconds is not None and size is not None:
        hours = spent.seconds * size / 3600.0
        spent_hours = "<0.001" if 0.0 < hours < 0.001 else number(hours, 3)
    price = NOT_KNOWN if spent.money is None else money(spent.money, facts.currency)
    rows = [(name, f"{count:,}") for name, count in parts.items() if count]
    said: tuple[str, ...] = ()
    if len(rows) > 1:
        rows.append(("Steps lost", f"{spent.steps_lost:,}"))
        said = ("Of a step that was lost in two ways one is counted.",)
    rows += [
        ("Time", NOT_KNOWN if spent.seconds is None else duration_phrase(spent.seconds)),
        ("Tokens", NOT_KNOWN if spent.tokens is None else large(spent.tokens)),
        ("Rank-hours (CPU)" if on_cpu else "GPU-hours", spent_hours),
        ("Money", "no price was set" if facts.price_per_hour is None else price),
        *([("Batches skipped", f"{spent.batches_skipped:,}")] if spent.batches_skipped else []),
    ]
    return (Table(("", "lost"), tuple(rows), (1,)), *said)
