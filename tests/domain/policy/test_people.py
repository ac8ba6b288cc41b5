"""The parts of a policy that are about people: quiet hours, the shadow, the kill switch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spikeguard_protocol import CommandState, Kind, Outcome, Verb
from spikeguard_server.domain.notification.quiet_hours import DAYS, QuietHours
from spikeguard_server.domain.policy.approval import auto_approval, shadow_approval
from spikeguard_server.domain.policy.settings import ApprovalMode, ApprovalRule, Policy
from spikeguard_server.domain.policy.shadow import (
    Hindsight,
    Score,
    ShadowDecision,
    judge_shadow,
    scorecard,
)

NIGHT = QuietHours("22:00", "07:00", days=("fri",))
HOUR = 3600


@pytest.mark.parametrize(
    ("weekday", "hour", "left_hours"),
    [
        ("fri", 21.999, None),
        ("fri", 22, 9),
        ("fri", 23.5, 7.5),
        ("sat", 0, 7),
        ("sat", 6.5, 0.5),
        ("sat", 7, None),
        ("sat", 23, None),
        ("fri", 3, None),
    ],
)
def test_quiet_hours_run_over_midnight_from_the_days_on_which_they_begin(
    weekday: str, hour: float, left_hours: float | None
) -> None:
    left = NIGHT.left_s(DAYS.index(weekday), int(hour * HOUR))
    assert left == (None if left_hours is None else left_hours * HOUR)


def test_quiet_hours_within_a_day_end_on_it() -> None:
    lunch = QuietHours("12:00", "13:00")
    assert lunch.left_s(0, 12 * HOUR + 600) == 3000
    assert lunch.left_s(0, 13 * HOUR) is None
    assert lunch.left_s(0, 0) is None


def test_what_is_urgent_and_the_run_itself_wait_for_no_morning() -> None:
    assert NIGHT.holds(Kind.LINGERING)
    assert not NIGHT.holds(Kind.DIVERGENT)
    assert not NIGHT.holds(None)


def test_the_kill_switch_outweighs_every_budget() -> None:
    rule = {Verb.ROLLBACK: ApprovalRule(ApprovalMode.AUTO, budget=9, cooldown_s=0.0)}
    assert auto_approval(Verb.ROLLBACK, Policy(approval=rule), ()).allowed
    answer = auto_approval(Verb.ROLLBACK, Policy(approval=rule, halted=True), ())
    assert not answer.allowed
    assert "kill switch" in answer.reason


def test_the_shadow_says_yes_as_auto_would_and_auto_says_no() -> None:
    rule = ApprovalRule(ApprovalMode.SHADOW, budget=2, cooldown_s=600.0)
    policy = Policy(approval={Verb.ROLLBACK: rule})
    assert not auto_approval(Verb.ROLLBACK, policy, ()).allowed
    assert shadow_approval(Verb.ROLLBACK, policy, ()).allowed
    assert not shadow_approval(Verb.ROLLBACK, policy, [500.0]).allowed
    assert not shadow_approval(Verb.ROLLBACK, policy, [700.0, 9000.0]).allowed
    assert not shadow_approval(Verb.STOP, policy, ()).allowed


OPEN = ShadowDecision(1000, 300, CommandState.PROPOSED, None, None)


@pytest.mark.parametrize(
    ("change", "score"),
    [
        ({}, Score(Hindsight.OPEN, None)),
        (
            {"state": CommandState.JUDGED, "decided_step": 1400, "outcome": Outcome.RECOVERED},
            Score(Hindsight.SAME, 400),
        ),
        ({"state": CommandState.APPROVED, "decided_step": 1010}, Score(Hindsight.SAME, 10)),
        (
            {"state": CommandState.EXPIRED, "outcome": Outcome.HEALED},
            Score(Hindsight.NOT_NEEDED, -300),
        ),
        (
            {"state": CommandState.REJECTED, "decided_step": 1001, "outcome": Outcome.HEALED},
            Score(Hindsight.NOT_NEEDED, -300),
        ),
        (
            {"state": CommandState.EXPIRED, "outcome": Outcome.LEVEL_ACCEPTED},
            Score(Hindsight.MISSED, None),
        ),
        (
            {"state": CommandState.SUPERSEDED, "outcome": Outcome.RECOVERED},
            Score(Hindsight.OTHERWISE, None),
        ),
    ],
)
def test_a_decision_of_the_shadows_is_judged_by_what_happened(
    change: dict[str, object], score: Score
) -> None:
    assert judge_shadow(replace(OPEN, **change)) == score  # type: ignore[arg-type]


def test_every_end_of_a_command_and_of_an_incident_has_a_hindsight() -> None:
    for state in CommandState:
        for outcome in (None, *Outcome):
            judge_shadow(replace(OPEN, state=state, outcome=outcome))


def test_a_scorecard_counts_what_is_known_and_guesses_nothing() -> None:
    scores = [
        Score(Hindsight.SAME, 400),
        Score(Hindsight.NOT_NEEDED, -300),
        Score(Hindsight.MISSED, None),
    ]
    card = scorecard(scores)
    assert (card.decisions, card.saved_steps) == (3, 100)
    assert card.by_hindsight[Hindsight.OPEN] == 0
    assert sum(card.by_hindsight.values()) == 3
