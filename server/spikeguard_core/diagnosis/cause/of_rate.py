"""Clues in the learning rate.

The loss of a step is measured before its update, so that a learning rate shows in the next step's
loss at the earliest. A rate that a command had lowered and that climbs back to what it was before
the incident has not risen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from spikeguard_core.detection.noise import median
from spikeguard_core.diagnosis.cause.measured import excesses, group_rates
from spikeguard_core.diagnosis.evidence import RISE, Evidence, Trace
from spikeguard_core.suspicion import Clue, Mark
from spikeguard_protocol import Cause

SOON = 4.0  # rows: the longer the loss stays calm at a raised rate, the less the rate explains
RESTARTED, PART = 2.0, 0.8  # weight of a rate that is back at so much of the run's highest
FURTHER = 6.0  # scales by which the loss rises further behind a rate that was raised meanwhile


def clues_of_rate(evidence: Evidence) -> Iterator[Clue]:
    """Whether the learning rate rose shortly before the onset: the first parameter group's, unless
    that of another group rose more."""
    rates = group_rates(evidence)
    first, *others = (_clue_of(evidence, rates[0], trace, n) for n, trace in rates.items())
    if first is not None:
        known = [first, *(clue for clue in others if clue is not None)]
        yield max(known, key=lambda clue: round(clue.weight, 1))
    yield from _meanwhile(evidence, rates[0].rows())


def _meanwhile(evidence: Evidence, rates: list[tuple[int, float]]) -> Iterator[Clue]:
    """Whether the learning rate rose while the loss was up, and the loss rose further behind it."""
    began = evidence.raised_step
    before = [rate for step, rate in rates if began is not None and step < began]
    if began is None or not before or began <= evidence.onset_step:
        return
    mark = _raised(rates, began, before[-1], before[-1])
    assert mark.ratio is not None
    reason = (
        f"the learning rate rose {mark.ratio:.3g}-fold at step {began}, "
        f"{_steps(began - evidence.onset_step)} after the onset"
    )
    up = [row for row in excesses(evidence) if math.isfinite(row[1])]
    most, further = (
        max((height for step, height in up if (step > began) is behind), default=0.0)
        for behind in (False, True)
    )
    if further < most + FURTHER:
        yield Clue(Cause.UNKNOWN, 0.0, reason)
        return
    weight = min(4.0, 1.0 + 2.0 * math.log(mark.ratio))  # of the onset it says nothing
    yield Clue(Cause.LR_TOO_HIGH, weight, f"{reason}, and the loss rose further", mark)


def _clue_of(evidence: Evidence, first: Trace, trace: Trace, group: int) -> Clue | None:
    """`first`: the rate of the first group; `trace`: that of the group of this number."""
    known = [r for r in trace.rows() if math.isfinite(r[1])]
    rows = [row for row in known if row[0] <= evidence.onset_step]
    if len(rows) < 2:
        return None
    began_low, lowest = min(rows, key=lambda row: row[1])
    later = [row for row in rows if row[0] > began_low]
    usual = max(lowest, (evidence.first_rate or 0.0) * _share(first, trace))
    highest = max((rate for _, rate in later), default=lowest)
    if not later or lowest <= 0.0 or highest < RISE * usual:
        return Clue(Cause.LR_TOO_HIGH, -1.0, "the learning rate had not risen before the onset")
    rise = highest / usual
    began = next(s for s, value in later if value >= RISE * usual)
    learning_rate = f"learning rate of group {group}" if group else "learning rate"
    ahead = evidence.onset_step - began
    reason = (
        f"the {learning_rate} rose {rise:.3g}-fold, from {usual:.3g} to {highest:.3g}, at step "
        f"{began}, {f'{_steps(ahead)} before' if ahead else 'where'} the loss left its trend"
    )
    calm = sum(1 for step, _ in later if began <= step < evidence.onset_step)
    most = 1.0 + 2.0 * math.log(rise)
    known_part = highest / evidence.highest_rate if evidence.highest_rate else 0.0
    back = evidence.highest_rate_step < rows[0][0] and PART <= known_part <= 1.0 and not group
    if back:
        most = min(most, RESTARTED)
        reason += (
            f", back where it was at step {evidence.highest_rate_step}: a warm restart, or a "
            "schedule that began anew"
        )
    weight = min(6.0, most) * min(1.0, SOON / max(calm, 1))
    mark = replace(_raised(known, began, lowest, usual), back=back)
    if group:  # a cap is one on the first group's rate, which may not have moved
        mark = replace(mark, usual=None)
    return Clue(Cause.LR_TOO_HIGH, weight, reason, mark)


def _share(first: Trace, trace: Trace) -> float:
    """How many times the first group's rate a group has as a rule."""
    pairs = zip(first.values, trace.values, strict=True)
    shares = [own / rate for rate, own in pairs if rate > 0.0 and math.isfinite(own / rate)]
    return median(shares) if shares else 1.0


def _raised(rows: list[tuple[int, float]], began: int, lowest: float, usual: float) -> Mark:
    """The steps whose rate was raised over the `usual` one from step `began` on; the last is None
    while it lasts. The ratio is to the `lowest`, which a command may have lowered: so much the
    schedule raises it whatever the command."""
    later = [row for row in rows if row[0] >= began]
    back = next((step for step, rate in later if rate < RISE * usual), None)
    raised = [row for row in later if back is None or row[0] < back]
    ratio = max(rate for _, rate in raised) / lowest
    return Mark(began, None if back is None else raised[-1][0], ratio, usual=usual)


def _steps(steps: int) -> str:
    return f"{steps} step{'s' * (steps != 1)}"
