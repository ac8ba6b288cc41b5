"""The policy as a person edits it, what an action costs, and whom it asks at which hours."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from spikeguard_core.policy.cost import Cost, cost_of, pace_of
from spikeguard_core.policy.orders import auto_approval
from spikeguard_core.policy.settings import (
    DAYS,
    DEFAULT_POLICY,
    ApprovalMode,
    ApprovalRule,
    Policy,
    QuietHours,
    policy_from_mapping,
    policy_to_mapping,
)
from spikeguard_core.policy.situation import PastCommand
from spikeguard_core.setting_fields import SettingError
from spikeguard_protocol import (
    BatchRange,
    CheckpointNow,
    CommandState,
    Health,
    Kind,
    Medium,
    ProtocolError,
    Rollback,
    ScaleLr,
    Stop,
    Verb,
    Watch,
)
from tests.domain.policy.situations import situation, target

EDITED = """
watch_steps = 300
act_confidence = 0.7
lr_factors = [0.5, 0.25]
price_per_hour = 98

[approval.rollback]
mode = "auto"
budget = 2
cooldown_s = 600
"""


def test_a_policy_survives_the_way_out_and_back() -> None:
    for policy in (DEFAULT_POLICY, policy_from_mapping(tomllib.loads(EDITED))):
        assert policy_from_mapping(policy_to_mapping(policy)) == policy


@pytest.mark.parametrize(
    ("plain", "field", "limit"),
    [
        ({"watch_step": 3}, "watch_step", "is no setting"),
        ({"watch_steps": 0}, "watch_steps", "lies in"),
        ({"watch_steps": 2.5}, "watch_steps", "takes a whole number"),
        ({"watch_steps": 10**400}, "watch_steps", "18 digits at most"),
        ({"price_per_hour": 10**400}, "price_per_hour", "18 digits at most"),
        ({"lr_factors": [0.1, 10**400]}, "lr_factors[1]", "18 digits at most"),
        ({"watch_steps": True}, "watch_steps", "takes a whole number"),
        ({"act_confidence": "high"}, "act_confidence", "takes a number"),
        ({"act_confidence": float("nan")}, "act_confidence", "lies in"),
        ({"price_per_hour": -1}, "price_per_hour", "lies in"),
        ({"lr_factors": []}, "lr_factors", "holds numbers in"),
        ({"lr_factors": [1.5]}, "lr_factors", "holds numbers in"),
        ({"lr_factors": ["half"]}, "lr_factors[0]", "takes a number"),
        ({"currency": ""}, "currency", "1 to 8 characters"),
        ({"approval": 3}, "approval", "takes a table"),
        ({"approval": {"reboot": {}}}, "approval.reboot", "is one of"),
        ({"approval": {"stop": "auto"}}, "approval.stop", "takes a table"),
        ({"approval": {"stop": {"mode": "yes"}}}, "approval.stop.mode", "is one of manual, auto"),
        ({"escalation": [600, 60]}, "escalation", "rising"),
        ({"escalation": ["soon"]}, "escalation[0]", "takes a number"),
        ({"halted": 1}, "halted", "is true or false"),
        ({"quiet": "night"}, "quiet", "takes a table"),
        ({"quiet": {"begin": "7"}}, "quiet.begin", "HH:MM"),
        ({"quiet": {"begin": "07:00", "end": "07:00"}}, "quiet.end", "differs"),
        ({"quiet": {"days": ["monday"]}}, "quiet.days", "mon, tue"),
        ({"quiet": {"until": "08:00"}}, "quiet.until", "is no setting"),
        ({"approval": {"stop": {"limit": 3}}}, "approval.stop.limit", "is no setting"),
        ({"approval": {"stop": {"budget": -1}}}, "approval.stop.budget", "lies in"),
        ({"approval": {"stop": {"cooldown_s": -1}}}, "approval.stop.cooldown_s", "lies in"),
    ],
)
def test_a_wrong_setting_is_named_with_its_limit_and_the_remedy(
    plain: dict[str, Any], field: str, limit: str
) -> None:
    with pytest.raises(SettingError, match=limit) as caught:
        policy_from_mapping(plain)
    assert caught.value.field == field
    assert caught.value.remedy
    assert isinstance(caught.value, ProtocolError)


def test_by_default_only_watching_needs_no_person() -> None:
    needing = {v for v in Verb if auto_approval(v, DEFAULT_POLICY, ()) is None}
    assert needing == set(Verb) - {Verb.WATCH}


# --- approval by the policy ---

AUTO = Policy(approval={Verb.ROLLBACK: ApprovalRule(ApprovalMode.AUTO, budget=2, cooldown_s=600.0)})
BACK = Rollback("ckpt-1000", 1000)


def automatic(
    age_s: float | None, action: Rollback | Watch = BACK, *, auto: bool = True
) -> PastCommand:
    return PastCommand(action, CommandState.JUDGED, 1, auto, decided_s_ago=age_s)


@pytest.mark.parametrize(
    ("past", "said"),
    [
        ((), "1 of 2 in 24 hours"),
        ((automatic(700.0),), "2 of 2 in 24 hours"),
        ((automatic(500.0),), None),
        ((automatic(None),), None),
        ((automatic(700.0), automatic(9_000.0)), None),
        ((automatic(90_000.0), automatic(90_001.0)), "1 of 2 in 24 hours"),
        ((automatic(10.0, auto=False),), "1 of 2 in 24 hours"),
        ((automatic(10.0, Watch(200)),), "1 of 2 in 24 hours"),
    ],
)
def test_the_policy_says_yes_within_its_budget_and_after_its_cooldown(
    past: tuple[PastCommand, ...], said: str | None
) -> None:
    answer = auto_approval(Verb.ROLLBACK, AUTO, past)
    assert (answer is None) if said is None else (answer is not None and said in answer)


# --- cost ---


def test_a_rollback_costs_the_steps_since_its_target_as_of_now() -> None:
    policy = Policy(price_per_hour=36.0)
    action = Rollback("ckpt-1000", 1000, BatchRange(1198, 1205))
    now = situation(step=1340)
    expected = Cost(340, 510.0, 340 * 524_288, 5.1, 1.5, 40, 0.6, "USD")
    assert cost_of(action, now, policy) == expected
    assert cost_of(action, situation(step=2000), policy).steps == 1000


def test_the_pace_is_that_of_the_steps_before_the_onset_whatever_a_few_of_them_took() -> None:
    calm = [0.5] * 190 + [30.0] * 10
    assert pace_of(calm, [2.5] * 1000) == 0.5
    assert pace_of([9.0] * 300 + [0.5] * 200) == 0.5
    assert pace_of([], [2.5] * 10) == 2.5
    assert pace_of([]) is None


def test_stopping_costs_what_no_disk_holds() -> None:
    targets = (target(900), target(1250, Health.SUSPECT, Medium.MEMORY))
    assert cost_of(Stop(), situation(targets=targets), DEFAULT_POLICY).steps == 440
    assert cost_of(Stop(), situation(targets=()), DEFAULT_POLICY).steps == 1340
    inside = (target(900), target(1300, Health.SUSPECT))
    assert cost_of(Stop(), situation(targets=inside), DEFAULT_POLICY).steps == 440


@pytest.mark.parametrize("action", [Watch(200), ScaleLr(0.5, 100), CheckpointNow()])
def test_what_goes_on_training_costs_no_steps(action: Watch | ScaleLr | CheckpointNow) -> None:
    cost = cost_of(action, situation(), DEFAULT_POLICY)
    assert (cost.steps, cost.waiting_steps) == (0, 0)


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
