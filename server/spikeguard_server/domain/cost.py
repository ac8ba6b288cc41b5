"""What carrying out an action would cost, as of now.

Law: costs are computed when they are read, never stored with the proposal: every step that passes
makes a rollback dearer.
"""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard_protocol import Action, Medium, Rollback, Stop
from spikeguard_server.domain.policy import Policy
from spikeguard_server.domain.situation import Situation


@dataclass(frozen=True, slots=True)
class Cost:
    """Work that has to be done again."""

    steps: int  # optimizer steps to be trained anew
    seconds: float | None  # at the run's present pace; None = pace unknown
    tokens: int | None  # trained in vain; None = tokens a step unknown
    money: float | None  # in the policy's currency; None = no price set or pace unknown


def cost_of(action: Action, situation: Situation, policy: Policy) -> Cost:
    """The cost of `action` if it were carried out at `situation.step`."""
    return cost_of_steps(_steps_lost(action, situation), situation, policy)


def cost_of_steps(steps: int, situation: Situation, policy: Policy) -> Cost:
    """The cost of training `steps` steps anew."""
    pace_s, tokens, price = situation.step_time_s, situation.tokens_per_step, policy.price_per_hour
    seconds = None if pace_s is None else steps * pace_s
    return Cost(
        steps=steps,
        seconds=seconds,
        tokens=None if tokens is None else steps * tokens,
        money=None if price is None or seconds is None else seconds * price / 3_600.0,
    )


def _steps_lost(action: Action, situation: Situation) -> int:
    if isinstance(action, Rollback):
        return max(0, situation.step - action.step)
    if isinstance(action, Stop):
        return situation.step - _newest_on_disk(situation)
    return 0


def _newest_on_disk(situation: Situation) -> int:
    """The step from which a stopped run would go on; 0 where nothing was saved."""
    return max((t.step for t in situation.targets if t.medium is Medium.DISK), default=0)
