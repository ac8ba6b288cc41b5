"""A project's own rules: asked first, and never past what may not be touched."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from spikeguard_core.policy.proposal import propose
from spikeguard_core.policy.settings import (
    DEFAULT_POLICY,
    Policy,
    PolicyError,
    policy_from_mapping,
    policy_to_mapping,
)
from spikeguard_core.suspicion import Suspicion
from spikeguard_protocol import (
    Cause,
    CheckpointNow,
    CommandState,
    IncidentState,
    Rollback,
    ScaleLr,
    Stop,
    Verb,
    Watch,
)
from tests.domain.policy.situations import done, incident, situation

BACK = Rollback("ckpt-1000", 1000)


def asked(*rules: dict[str, Any]) -> Policy:
    return policy_from_mapping({"rules": list(rules)})


def test_without_rules_nothing_changes() -> None:
    assert propose(situation(), asked()) == propose(situation(), DEFAULT_POLICY)
    assert isinstance(propose(situation(), DEFAULT_POLICY).action, Rollback)


@pytest.mark.parametrize(
    ("rule", "action"),
    [
        ({"do": "nothing"}, None),
        ({"do": "watch", "steps": 50}, Watch(50)),
        ({"do": "checkpoint_now"}, CheckpointNow()),
        ({"do": "scale_lr", "lr_factor": 0.25, "steps": 100}, ScaleLr(0.25, 100)),
        ({"do": "stop"}, Stop()),
    ],
)
def test_a_rule_decides_in_the_policys_place_and_says_so(rule: dict[str, Any], action: Any) -> None:
    proposal = propose(situation(), asked({**rule, "why": "we agreed on it"}))
    assert proposal.action == action
    assert proposal.reason.startswith("Rule 1 of the policy: we agreed on it.")


def test_a_usual_rollback_goes_on_at_the_rules_learning_rate() -> None:
    usual = propose(situation(), DEFAULT_POLICY).action
    assert isinstance(usual, Rollback)
    found = propose(situation(), asked({"do": "usual", "lr_factor": 0.7, "steps": 300})).action
    assert found == replace(usual, lr_factor=0.7, lr_steps=300)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"kinds": ["lingering"]}, True),
        ({"kinds": ["divergent", "outlier_batch"]}, False),
        ({"confidence": 0.8}, True),
        ({"confidence": 0.9}, False),
        ({"attempts": 1}, True),
        ({"attempts": 2}, False),
        ({"attempts_most": 1}, True),
        ({"attempts_most": 0}, False),
        ({"recurrences": 1}, True),
        ({"recurrences": 2}, False),
        ({"warned": True}, True),
        ({"warned": False}, False),
        ({"causes": ["lr_too_high"]}, True),
        ({"causes": ["lr_too_high"], "cause_confidence": 0.9}, False),
        ({"causes": ["bad_batch"]}, False),
        ({"kinds": ["lingering"], "attempts": 2}, False),
    ],
)
def test_every_condition_has_to_hold(condition: dict[str, Any], holds: bool) -> None:
    about = incident(
        recurrences=1,
        first_moves={"grad_norm": 1198, "loss": 1200},
        causes=(Suspicion(Cause.LR_TOO_HIGH, 0.6, ("it was raised",)),),
    )
    seen = situation(about, past=(done(BACK, step=1300),))
    found = propose(seen, asked({"do": "stop", **condition})).action
    assert (found == Stop()) is holds


def test_a_rule_about_causes_holds_for_none_that_is_not_known() -> None:
    rule = {"do": "stop", "causes": [cause.value for cause in Cause]}
    assert propose(situation(), asked(rule)).action != Stop()


def test_the_first_rule_that_holds_decides() -> None:
    rules = ({"do": "stop", "kinds": ["divergent"]}, {"do": "nothing"}, {"do": "stop"})
    proposal = propose(situation(), asked(*rules))
    assert proposal.action is None
    assert proposal.reason.startswith("Rule 2 ")


@pytest.mark.parametrize(
    "untouchable",
    [
        situation(incident(state=IncidentState.CLOSED, closed_step=1340)),
        situation(incident(state=IncidentState.RECOVERING)),
        situation(past=(done(BACK, CommandState.APPROVED),)),
    ],
    ids=["closed", "being judged", "in flight"],
)
def test_no_rule_reaches_past_what_is_under_way(untouchable: Any) -> None:
    assert propose(untouchable, asked({"do": "stop"})).action is None


def test_no_rule_orders_what_the_attempt_cannot_do_or_a_person_just_refused() -> None:
    unable = situation(capabilities=frozenset({Verb.WATCH}))
    assert propose(unable, asked({"do": "stop"})).action is None
    refused = situation(past=(done(Stop(), CommandState.REJECTED, step=1339),))
    assert propose(refused, asked({"do": "stop"})).action is None


def test_rules_survive_the_way_out_and_back() -> None:
    text = """
    [[rules]]
    kinds = ["lingering"]
    causes = ["lr_too_high"]
    cause_confidence = 0.5
    warned = true
    do = "scale_lr"
    lr_factor = 0.5
    steps = 300
    why = "the schedule is too steep"
    """
    policy = policy_from_mapping(tomllib.loads(text))
    plain = policy_to_mapping(policy)
    assert policy_from_mapping(plain) == policy
    assert plain["rules"][0]["do"] == "scale_lr"


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ("stop", "rules"),
        ([3], "rules[0]"),
        ([{}], "rules[0].do"),
        ([{"do": "stop"}, {"do": "dance"}], "rules[1].do"),
        ([{"do": "stop", "colour": "red"}], "rules[0].colour"),
        ([{"do": "stop", "kinds": ["bad"]}], "rules[0].kinds"),
        ([{"do": "stop", "confidence": 2}], "rules[0].confidence"),
        ([{"do": "stop", "attempts": 1.5}], "rules[0].attempts"),
        ([{"do": "stop", "warned": 1}], "rules[0].warned"),
        ([{"do": "scale_lr", "lr_factor": 1.0}], "rules[0].lr_factor"),
        ([{"do": "stop"}] * 51, "rules"),
    ],
)
def test_a_bad_rule_is_named(rules: Any, field: str) -> None:
    with pytest.raises(PolicyError) as refused:
        policy_from_mapping({"rules": rules})
    assert refused.value.field == field
