"""Clues in the learning rate.

Law: pure. The loss of a step is measured before its update, so that a learning rate shows in the
next step's loss at the earliest. A rate that a command had lowered and that climbs back to what it
was before the incident has not risen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from spikeguard_core.diagnosis.evidence import Evidence
from spikeguard_core.suspicion import Clue, Mark
from spikeguard_protocol import Cause, Signal

RISE = 1.3  # of the learning rate within the steps that are kept before the onset


def clues_of_rate(evidence: Evidence) -> Iterator[Clue]:
    """Whether the learning rate rose shortly before the onset."""
    known = [r for r in evidence.whole(Signal.LR.value).rows() if math.isfinite(r[1])]
    rows = [row for row in known if row[0] <= evidence.onset_step]
    if len(rows) < 2:
        return
    first, lowest = min(rows, key=lambda row: row[1])
    later = [row for row in rows if row[0] > first]
    usual = max(lowest, evidence.first_rate or 0.0)
    highest = max((rate for _, rate in later), default=lowest)
    if not later or lowest <= 0.0 or highest < RISE * usual:
        yield Clue(Cause.LR_TOO_HIGH, -1.0, "the learning rate had not risen before the onset")
        return
    rise = highest / usual
    began = next(s for s, value in later if value >= RISE * usual)
    reason = (
        f"the learning rate rose {rise:.3g}-fold, from {usual:.3g} to {highest:.3g}, at step "
        f"{began}, {_ahead(evidence.onset_step - began)}"
    )
    weight = min(6.0, 1.0 + 2.0 * math.log(rise))
    yield Clue(Cause.LR_TOO_HIGH, weight, reason, _raised(known, began, lowest, usual))


def _raised(rows: list[tuple[int, float]], began: int, lowest: float, usual: float) -> Mark:
    """The steps whose rate was raised over the `usual` one from step `began` on; the last is None
    while it lasts. The ratio is to the `lowest`, which a command may have lowered: so much the
    schedule raises it whatever the command."""
    later = [row for row in rows if row[0] >= began]
    back = next((step for step, rate in later if rate < RISE * usual), None)
    raised = [row for row in later if back is None or row[0] < back]
    ratio = max(rate for _, rate in raised) / lowest
    return Mark(began, None if back is None else raised[-1][0], ratio, usual=usual)


def _ahead(steps: int) -> str:
    if steps == 0:
        return "where the loss left its trend"
    return f"{steps} step{'s' * (steps != 1)} before the loss left its trend"
