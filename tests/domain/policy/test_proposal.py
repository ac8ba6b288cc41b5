"""What an on-call engineer would propose, within what the job itself allows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from spikeguard_core.events import Trend
from spikeguard_core.policy.orders import read_limits
from spikeguard_core.policy.proposal import differs, propose
from spikeguard_core.policy.rules import Proposal
from spikeguard_core.policy.settings import DEFAULT_POLICY, Policy
from spikeguard_core.policy.situation import OrderLimits, PastCommand, Situation
from spikeguard_core.suspicion import Mark
from spikeguard_protocol import (
    Ability,
    Answer,
    BatchRange,
    Cause,
    CommandState,
    Kind,
    Rollback,
    ScaleLr,
    Stop,
    Verb,
    Watch,
)
from tests.domain.policy.situations import (
    EVERY_VERB,
    SEGMENT,
    TARGETS,
    blamed,
    done,
    incident,
    situation,
    target,
)

NEAR = Rollback("mem-1190", 1190, BatchRange(1198, 1205))
POLICY = DEFAULT_POLICY


def ask(about: Situation, policy: Policy = POLICY) -> Proposal:
    return propose(about, policy)


def rollback(proposal: Proposal) -> Rollback:
    assert isinstance(proposal.action, Rollback), proposal.reason
    return proposal.action


# --- nothing, or watching ---


def test_a_healing_spike_is_watched_for_200_steps_and_never_rolled_back() -> None:
    proposal = ask(situation(incident(kind=Kind.RECOVERABLE, reason="falling 0.1 a step")))
    assert proposal.action == Watch(200)
    assert proposal.expires_at_step == 1540
    assert proposal.reason == "Expected to heal by itself. Look again at step 1,540."


def test_a_rejection_stands_until_something_new_is_known() -> None:
    no = (replace(done(NEAR, CommandState.REJECTED, step=1255), cause=Cause.UNKNOWN),)

    def asked(step: int, past: tuple[PastCommand, ...] = no, **changes: object) -> Proposal:
        later = incident(newest_step=step, **changes)
        return ask(situation(later, past=past, step=step))

    quiet = asked(1440, first_moves={"loss": 1200, "grad_norm": 1290})
    assert quiet.action is None
    assert "asked again from step 1455 on, if something new is known then" in quiet.reason
    assert asked(9000).action is None
    assert rollback(asked(1455, kind=Kind.DIVERGENT)).target == "ckpt-1000"
    assert asked(1455, first_moves={"loss": 1200, "grad_norm": 1300}).action is not None
    assert asked(9000, past=(replace(no[0], cause="lr_too_high"),)).action == NEAR


def test_whoever_said_no_to_a_stop_without_a_way_back_is_not_asked_again() -> None:
    no = (done(Stop(), CommandState.REJECTED, step=1400),)
    for changes in ({}, {"excess": math.nan, "kind": Kind.DIVERGENT}):
        later = incident(newest_step=9000, **changes)
        assert ask(situation(later, targets=(), step=9000)).action == Stop()
        assert ask(situation(later, targets=(), past=no, step=9000)).action is None
        back = replace(later, recurred_step=1500, recurred_segment=SEGMENT, settled=True)
        assert ask(situation(back, targets=(), past=no, step=9000)).action == Stop()


# --- when it comes back ---


def recurred(at: int, batches: BatchRange, times: int = 1, **changes: object) -> Situation:
    back = incident(
        recurrences=times,
        recurred_segment=SEGMENT,
        recurred_step=at,
        recurred_batches=batches,
        came_back=True,
        newest_step=at + 30,
        anomalous_step=at + 30,
        settled=True,
        **changes,
    )
    return situation(back, step=at + 30, past=(done(NEAR),) * times)


@pytest.mark.parametrize(
    ("newest", "reach"), [(1250, 46), (1245, 92)], ids=["calm again", "still stands out"]
)
def test_a_widened_skip_reaches_all_that_stood_out_since(newest: int, reach: int) -> None:
    """60 bad batches in a row are no 5 and 11; the end of a stretch that lasts is not known."""
    long = recurred(1199, BatchRange(1208, 1209))
    late = replace(long.incident, newest_step=newest, anomalous_step=1245)
    skip = rollback(ask(replace(long, incident=late, step=1250))).skip
    assert skip is not None
    assert (skip.first, skip.end) == (1198, 1209 + reach + 2)


FALLING = Trend(99_999, 3.1, -2.358e-6, 0.003)  # by 0.24 nats an e-fold of the steps


@pytest.mark.parametrize(
    ("back", "changes", "person", "said"),
    [
        (85_000, {"trend": FALLING}, False, "Left as it is, the loss stays some 73,000 steps"),
        (85_000, {"trend": FALLING, "excess": 0.012}, True, "5,000 steps behind, which costs less"),
        (60_000, {}, True, "Going back trains 40,160 steps again, 40% of the run."),
    ],
)
def test_a_rollback_over_many_steps_says_its_price_and_is_left_to_a_person_where_it_wins_less(
    back: int, changes: dict[str, Any], person: bool, said: str
) -> None:
    late = incident(
        onset_step=100_000, onset_batches=None, newest_step=100_160, peak_step=100_003,
        detected_step=100_001, settled=True, first_moves={}, **changes,
    )  # fmt: skip
    proposal = ask(situation(late, step=100_160, targets=(target(back),)))
    assert (proposal.by_person, said in proposal.reason) == (person, True)


# --- no way back ---


def test_without_a_way_back_a_person_is_asked_whatever_the_policy_may_approve() -> None:
    proposal = ask(situation(targets=()))
    assert proposal.action == Stop()
    assert proposal.by_person
    assert "no checkpoint or snapshot" in proposal.reason
    assert "a checkpoint of your own" in proposal.reason


def test_without_a_way_back_a_kind_that_swings_makes_no_other_offer() -> None:
    """A loss that climbs through its noise is divergent in one row and lingering in the next."""
    for offer in (ScaleLr(0.5, 170), Stop()):
        waiting = (done(offer, CommandState.PROPOSED, step=1340),)
        for kind in (Kind.DIVERGENT, Kind.LINGERING):
            swinging = incident(kind=kind, confidence=0.7)
            again = ask(situation(swinging, targets=(), past=waiting)).action
            assert type(again) is type(offer)
    sure = incident(kind=Kind.DIVERGENT, confidence=0.95)
    assert type(ask(situation(sure, targets=(), past=waiting)).action) is ScaleLr


# --- what the loop itself stands in the way of ---

UNFED = Ability(
    "rollback",
    Answer.NO,
    "the loop does not take its items from guard.batches()",
    "Iterate over guard.batches(loader)",
)


def test_a_loop_that_cannot_go_back_is_told_from_where_to_restart_and_what_helps() -> None:
    no_rollback = EVERY_VERB - {Verb.ROLLBACK}
    lost = incident(kind=Kind.DIVERGENT, excess=math.nan)
    raised = incident(settled=True, causes=blamed(Cause.LR_TOO_HIGH, mark=Mark(1191)))
    late = (*TARGETS, target(1195))  # written at the raised rate
    for about, targets in ((incident(), TARGETS), (lost, TARGETS), (raised, late)):
        found = situation(about, capabilities=no_rollback, abilities=(UNFED,), targets=targets)
        asked = ask(found)
        assert asked.action is not None
        assert "The loop does not take its items from guard.batches()." in asked.reason
        assert "Iterate over guard.batches(loader)." in asked.reason
        assert "restart the job from ckpt-1150 (disk, step 1,150, 50 steps before" in asked.reason


# --- an approval that comes late ---


@pytest.mark.parametrize("blamed_on", [Cause.LR_TOO_HIGH, Cause.BAD_BATCH, Cause.UNKNOWN])
def test_an_offer_does_not_change_while_nothing_but_steps_go_by(blamed_on: Cause) -> None:
    """A rate's length is counted from the target; a skip that grows is the same offer."""
    shown = incident(causes=blamed(blamed_on), excess=0.3, settled=True)
    seen = rollback(ask(situation(shown)))
    for step in range(1340, 9_000, 60):
        later = replace(shown, newest_step=step)
        waiting = (PastCommand(seen, CommandState.PROPOSED, 3, cause=blamed_on),)
        proposal = ask(situation(later, step=step, past=waiting))
        assert not differs(seen, rollback(proposal)), proposal.reason
        assert proposal.cause is Cause(blamed_on)


def test_a_cause_that_hovers_about_its_bar_leaves_the_offer_alone() -> None:
    """What somebody may be reading outlasts noise; a cause that lost its evidence is said."""
    sure = incident(causes=blamed(Cause.LR_TOO_HIGH, 0.62), settled=True)
    proposal = ask(situation(sure))
    seen = rollback(proposal)
    waiting = (PastCommand(seen, CommandState.PROPOSED, 3, cause=proposal.cause),)
    noise = replace(sure, causes=blamed(Cause.LR_TOO_HIGH, 0.55))
    assert ask(situation(noise, past=waiting)).cause is proposal.cause
    assert ask(situation(noise)).cause is Cause.UNKNOWN
    gone = replace(sure, causes=blamed(Cause.LR_TOO_HIGH, 0.45))
    assert ask(situation(gone, past=waiting)).cause is Cause.UNKNOWN


def test_what_nobody_answered_is_asked_again_after_a_while_and_other_things_at_once() -> None:
    proposal = ask(situation(incident(settled=True)))
    expired = PastCommand(
        rollback(proposal), CommandState.EXPIRED, 3, decided_step=1340, cause=proposal.cause
    )
    quiet = ask(situation(incident(settled=True), past=(expired,), step=1350))
    assert quiet.action is None
    assert "asked again at step 1540" in quiet.reason
    assert ask(situation(incident(settled=True), past=(expired,), step=1540)).action is not None
    gone = tuple(t for t in TARGETS if t.name != rollback(proposal).target)
    other = situation(incident(settled=True), past=(expired,), step=1350, targets=gone)
    assert ask(other).action is not None


CLIMBING = incident(kind=Kind.DIVERGENT, confidence=0.95)


def ask_of(about: Situation, **limits: float) -> Proposal:
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
    limited = ask_of(situation(CLIMBING), rollback_steps_most=1340 - free.action.step)
    assert isinstance(limited.action, Rollback)
    assert limited.action.step > free.action.step
    assert "out of reach: the job gives up at most" in limited.reason
    assert "rollback_steps_most" in limited.reason


def test_where_nothing_is_within_reach_no_checkpoint_is_said_to_be_missing() -> None:
    apart = {
        "worst_z": {"replicas_apart": math.inf}, "first_moves": {"replicas_apart": 1151},
        "signal": "replicas_apart", "excess": 0.0,
    }  # fmt: skip
    limited = ask_of(situation(incident(**apart)), rollback_steps_most=190)
    assert isinstance(limited.action, Stop)
    assert "within reach lies 2 steps or more before step 1,151, where it began" in limited.reason
    assert "4 older targets are out of reach" in limited.reason


def test_a_skip_is_cut_to_what_the_job_leaves_out_and_says_so() -> None:
    limited = ask_of(situation(CLIMBING), skip_batches_most=7)
    assert isinstance(limited.action, Rollback)
    assert limited.action.skip is not None
    assert len(limited.action.skip) == 7
    assert "The job's own settings allow no more: skip_batches_most = 7." in limited.reason


def test_a_learning_rate_is_lowered_no_further_than_the_job_allows() -> None:
    about = situation(CLIMBING, targets=())
    limited = ask_of(about, lr_factor_least=0.75, lr_steps_most=40)
    assert limited.action == ScaleLr(0.75, 40)
    assert "lr_factor_least" in limited.reason


def test_no_more_rollbacks_a_day_are_proposed_than_the_job_takes() -> None:
    earlier = done(Rollback("ckpt-900", 900, BatchRange(901, 903)), number=2)
    yesterday = replace(earlier, decided_s_ago=90_000.0)
    refused = replace(earlier, state=CommandState.REFUSED)
    spent = ask_of(situation(CLIMBING, past=(earlier,)), rollbacks_a_day=1)
    assert spent.action is None
    assert "at most 1 orders to rollback in 24 hours (its setting rollbacks_a_day)" in spent.reason
    for past in (yesterday, refused):
        assert ask_of(situation(CLIMBING, past=(past,)), rollbacks_a_day=1).action is not None
