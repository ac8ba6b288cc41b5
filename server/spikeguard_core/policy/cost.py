"""What a command would cost now, what waiting costs, and what an incident did cost.

Which steps are lost, and at what pace, says docs/policy.md ("What a cost is").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import RunSituation
from spikeguard_protocol import Action, Health, Medium, Rollback, Stop

PACE_STEPS: Final = 200  # measured steps before the onset that the pace is the median of, at most


@dataclass(frozen=True, slots=True)
class Cost:
    """Steps lost, and more each minute of waiting. Null: not known, or no price per hour is set."""

    steps: int  # optimizer steps to be trained anew
    seconds: float | None  # at the pace; None = pace unknown
    tokens: int | None  # trained in vain; None = tokens a step unknown
    money: float | None  # None = no price set or pace unknown
    step_time_s: float | None = None  # the pace; None = no step measured it
    waiting_steps: int | None = 0  # more for each minute without a decision; None = not known
    waiting_money: float | None = None  # the same in money; None = no price set, or not known
    currency: str | None = None  # of `money`; None where that is


def pace_of(before: Sequence[float], since: Sequence[float] = ()) -> float | None:
    """Seconds a step: the median of the newest `PACE_STEPS` step times `before` the onset, oldest
    first, or of those `since` where there are none. None: no step measured it."""
    times = (before or since)[-PACE_STEPS:]
    return median(times) if times else None


def cost_of(action: Action | None, situation: RunSituation, policy: Policy) -> Cost:
    """The cost of `action` if it were carried out at `situation.step`, in steps that are trained
    anew; None: of what came to nothing."""
    steps, grows = 0, isinstance(action, Rollback | Stop)
    if isinstance(action, Rollback):
        steps = max(0, situation.step - action.step)
    elif isinstance(action, Stop):
        steps = situation.step - _restart_step(situation)
    pace_s, tokens, price = situation.step_time_s, situation.tokens_per_step, policy.price_per_hour
    seconds = None if pace_s is None else steps * pace_s
    money = None if seconds is None else money_of(seconds, price)
    a_minute = round(60.0 / pace_s) if pace_s and situation.trains else None
    return Cost(
        steps=steps,
        seconds=seconds,
        tokens=None if tokens is None else steps * tokens,
        money=money,
        step_time_s=pace_s,
        waiting_steps=a_minute if grows else 0,
        waiting_money=money_of(60.0, price) if grows and situation.trains else None,
        currency=None if money is None else policy.currency,
    )


def can_wait_s(left_s: float, expires_at_step: int | None, situation: RunSituation) -> float:
    """Seconds until the earliest deadline of a command: `left_s` by the clock, or the steps until
    `expires_at_step` at the run's pace, while it trains."""
    pace_s = situation.step_time_s
    if expires_at_step is None or pace_s is None or not situation.trains:
        return max(0.0, left_s)
    return max(0.0, min(left_s, (expires_at_step - situation.step) * pace_s))


def money_of(seconds: float, price_per_hour: float | None) -> float | None:
    """What the whole job costs in so many seconds."""
    return None if price_per_hour is None else seconds * price_per_hour / 3_600.0


def _restart_step(situation: RunSituation) -> int:
    """The step from which a stopped run would go on; 0 where nothing whole was saved.

    One beyond the run's step was left behind when the run went back.
    """
    doubtful = (Health.SUSPECT, Health.DAMAGED)
    whole = (t for t in situation.targets if t.health not in doubtful)
    saved = (t.step for t in whole if t.medium is Medium.DISK)
    return max((step for step in saved if step <= situation.step), default=0)
