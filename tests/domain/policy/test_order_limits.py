"""What the job itself would refuse is not proposed to a person."""

from __future__ import annotations

from dataclasses import replace

from spikeguard_core.policy.order_limits import read_limits
from spikeguard_core.policy.proposal import propose
from spikeguard_core.policy.rules import Proposal
from spikeguard_core.policy.settings import DEFAULT_POLICY
from spikeguard_core.policy.situation import OrderLimits, Situation
from spikeguard_protocol import BatchRange, CommandState, Kind, Rollback, ScaleLr
from tests.domain.policy.situations import done, incident, situation

CLIMBING = incident(kind=Kind.DIVERGENT, confidence=0.95)


def ask(about: Situation, **limits: float) -> Proposal:
    return propose(replace(about, limits=OrderLimits(**limits)), DEFAULT_POLICY)


def test_a_job_that_tells_no_limits_gets_what_it_got_before() -> None:
    told = {"optimizer": "AdamW", "rollback_steps_most": "far", "lr_factor_least": "nan"}
    assert read_limits(told) == OrderLimits()
    free = propose(situation(CLIMBING), DEFAULT_POLICY)
    assert isinstance(free.action, Rollback)
    roomy = read_limits({"rollback_steps_most": "5000", "skip_batches_most": "2000"})
    limited = propose(replace(situation(CLIMBING), limits=roomy), DEFAULT_POLICY)
    assert (limited.action, limited.reason) == (free.action, free.reason)


def test_a_target_further_back_than_the_job_goes_is_not_named() -> None:
    free = propose(situation(CLIMBING), DEFAULT_POLICY)
    assert isinstance(free.action, Rollback)
    limited = ask(situation(CLIMBING), rollback_steps_most=1340 - free.action.step)
    assert isinstance(limited.action, Rollback)
    assert limited.action.step > free.action.step
    assert "out of reach: the job gives up at most" in limited.reason
    assert "rollback_steps_most" in limited.reason


def test_a_skip_is_cut_to_what_the_job_leaves_out_and_says_so() -> None:
    limited = ask(situation(CLIMBING), skip_batches_most=7)
    assert isinstance(limited.action, Rollback)
    assert limited.action.skip is not None
    assert len(limited.action.skip) == 7
    assert "More than the job's own settings allow: skip_batches_most = 7." in limited.reason


def test_a_learning_rate_is_lowered_no_further_than_the_job_allows() -> None:
    about = situation(CLIMBING, targets=())
    limited = ask(about, lr_factor_least=0.75, lr_steps_most=40)
    assert limited.action == ScaleLr(0.75, 40)
    assert "lr_factor_least" in limited.reason


def test_no_more_rollbacks_a_day_are_proposed_than_the_job_takes() -> None:
    earlier = done(Rollback("ckpt-900", 900, BatchRange(901, 903)), number=2)
    yesterday = replace(earlier, decided_s_ago=90_000.0)
    refused = replace(earlier, state=CommandState.REFUSED)
    spent = ask(situation(CLIMBING, past=(earlier,)), rollbacks_a_day=1)
    assert spent.action is None
    assert "at most 1 orders to rollback in 24 hours (its setting rollbacks_a_day)" in spent.reason
    for past in (yesterday, refused):
        assert ask(situation(CLIMBING, past=(past,)), rollbacks_a_day=1).action is not None
