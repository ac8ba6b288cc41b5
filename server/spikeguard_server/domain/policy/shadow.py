"""What shadow mode would have done, and whether waiting turned out better.

Law: pure, and judged by what happened, which the shadow did not touch. A score says what it knows:
steps that acting at once would have saved, where a person did the same later; steps that it would
have cost, where the spike healed by itself; and nothing where neither is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from spikeguard_protocol import CommandState, Outcome

_YES = frozenset(
    {
        CommandState.APPROVED,
        CommandState.DELIVERED,
        CommandState.APPLIED,
        CommandState.JUDGED,
        CommandState.FAILED,
        CommandState.REFUSED,
        CommandState.UNKNOWN,
    }
)
_HARMLESS = frozenset({Outcome.HEALED, Outcome.OUTLIER, Outcome.WITHDRAWN})


class Hindsight(StrEnum):
    """How a decision of the shadow's looks afterwards."""

    OPEN = "open"  # the incident is not closed, and nobody decided yet
    SAME = "same"  # a person did it too, later
    NOT_NEEDED = "not_needed"  # it healed by itself: waiting was better
    MISSED = "missed"  # nobody acted and it did not heal: acting may have been better
    OTHERWISE = "otherwise"  # a person did something else, and that was it


@dataclass(frozen=True, slots=True)
class ShadowDecision:
    """A yes that the policy would have given, and what became of the matter."""

    step: int  # of the run, at the yes
    cost_steps: int  # of carrying it out then
    state: CommandState  # of the command now
    decided_step: int | None
    outcome: Outcome | None  # of the incident; None while it is open


@dataclass(frozen=True, slots=True)
class Score:
    """A decision in hindsight. `saved_steps` < 0: acting would have cost that many."""

    hindsight: Hindsight
    saved_steps: int | None


def judge_shadow(decision: ShadowDecision) -> Score:
    """How it looks now."""
    if decision.state in _YES:
        later = None if decision.decided_step is None else decision.decided_step - decision.step
        return Score(Hindsight.SAME, later)
    if decision.outcome is None:
        return Score(Hindsight.OPEN, None)
    if decision.outcome in _HARMLESS:
        return Score(Hindsight.NOT_NEEDED, -decision.cost_steps)
    if decision.outcome is Outcome.RECOVERED:
        return Score(Hindsight.OTHERWISE, None)
    return Score(Hindsight.MISSED, None)


@dataclass(frozen=True, slots=True)
class Scorecard:
    """All of a project's shadow decisions together."""

    decisions: int
    by_hindsight: dict[Hindsight, int]
    saved_steps: int  # the sum of what is known; below 0 waiting was better so far


def scorecard(scores: Sequence[Score]) -> Scorecard:
    """The sum of `scores`."""
    counts = {word: sum(score.hindsight is word for score in scores) for word in Hindsight}
    return Scorecard(len(scores), counts, sum(score.saved_steps or 0 for score in scores))
