"""What an on-call engineer would propose, situation by situation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spikeguard_core.policy.proposal import Proposal, differs, propose
from spikeguard_core.policy.remedies import Diagnosis
from spikeguard_core.policy.settings import DEFAULT_POLICY, Policy
from spikeguard_core.policy.situation import (
    OrderLimits,
    PastCommand,
    Situation,
    Target,
)
from spikeguard_protocol import (
    Ability,
    Answer,
    BatchRange,
    Cause,
    CommandState,
    Health,
    IncidentState,
    Kind,
    Medium,
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
    assert (
        proposal.reason
        == "Expected to heal by itself. Falling 0.1 a step. Look again at step 1540."
    )


def test_a_watch_is_not_proposed_again_before_its_steps_are_over() -> None:
    healing = incident(kind=Kind.RECOVERABLE)
    watched = (done(Watch(200), CommandState.APPLIED, step=1150),)
    assert ask(situation(healing, past=watched)).action is None
    assert ask(situation(healing, past=watched, step=1350)).action == Watch(200)


def test_an_outlier_batch_asks_for_nothing() -> None:
    assert ask(situation(incident(kind=Kind.OUTLIER_BATCH))).action is None


@pytest.mark.parametrize(("newest", "said"), [(1202, "2 of the 5"), (1205, "nothing to undo")])
def test_a_dropped_update_followed_by_calm_steps_asks_for_nothing(newest: int, said: str) -> None:
    dropped = incident(
        kind=Kind.RECOVERABLE, dropped=True, newest_step=newest, worst_z={"grad_norm": math.inf}
    )
    proposal = ask(situation(dropped, step=newest))
    assert proposal.action is None
    assert said in proposal.reason


STUCK = incident(
    kind=Kind.DIVERGENT,
    confidence=0.95,
    reason="stuck: 10 updates in a row had to be dropped, the weights stand still",
    dropped=True,
    newest_step=1209,
    excess=0.0,
    worst_z={"grad_norm": math.inf, "update_dropped": math.inf},
)


def test_a_run_that_is_stuck_is_rolled_back_at_once() -> None:
    """Also where a dropped update is given longer to be followed by calm steps."""
    for policy in (Policy(), Policy(calm_steps=100)):
        proposal = ask(situation(STUCK, step=1209), policy)
        assert rollback(proposal).step < 1200
        assert "Stuck: 10 updates in a row" in proposal.reason


def test_a_run_that_is_stuck_and_cannot_go_back_is_stopped() -> None:
    proposal = ask(situation(STUCK, step=1209, targets=()))
    assert proposal.action == Stop()
    assert "stuck and there is no way back" in proposal.reason
    assert STUCK.stuck
    assert not incident().stuck


APART = incident(
    kind=Kind.DIVERGENT,
    confidence=0.95,
    reason="apart: 1 rank (rank 3) no longer holds the weights of the others at step 1250",
    onset_step=1151,
    onset_batches=BatchRange(1150, 1151),
    newest_step=1250,
    excess=0.0,
    signal="replicas_apart",
    worst_z={"replicas_apart": math.inf},
    first_moves={"replicas_apart": 1151},
)


def test_ranks_apart_go_back_to_the_newest_target_from_before_and_skip_nothing() -> None:
    """At once, whatever the loss does; a snapshot a step after they were equal is not one."""
    proposal = ask(situation(APART, step=1250, targets=(*TARGETS, target(1149))))
    assert rollback(proposal) == Rollback("ckpt-1149", 1149)
    assert proposal.reason.startswith("Apart: 1 rank (rank 3)")
    assert rollback(ask(situation(APART, step=1250))) == Rollback("ckpt-1000", 1000)


def test_ranks_apart_found_in_a_spike_are_gone_back_from_to_where_they_were_equal() -> None:
    spike = replace(APART, onset_step=1200, onset_batches=BatchRange(1199, 1200), signal="loss")
    assert rollback(ask(situation(spike, step=1250))).step == 1000


def test_ranks_apart_without_a_way_back_are_stopped() -> None:
    about = situation(APART, step=1250)
    without = (
        replace(about, targets=()),
        replace(about, capabilities=EVERY_VERB - {Verb.ROLLBACK}),
    )
    for proposal in map(ask, without):
        assert proposal.action == Stop()
        assert "there is no way back" in proposal.reason


def test_ranks_that_parted_again_after_a_rollback_are_stopped_for_their_hardware() -> None:
    past = (done(Rollback("ckpt-1000", 1000), CommandState.JUDGED, step=1255),)
    again = replace(APART, recurrences=1, recurred_step=1101, first_moves={"replicas_apart": 1101})
    proposal = ask(situation(again, step=1200, past=past))
    assert proposal.action == Stop()
    assert "parted again" in proposal.reason


def test_ranks_that_are_equal_again_are_asked_about_as_any_other_incident() -> None:
    healing = replace(APART, kind=Kind.RECOVERABLE, reason="back on trend", first_moves={})
    assert isinstance(ask(situation(healing, step=1250)).action, Watch)
    assert healing.apart


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"confidence": 0.45}, "probability of 45%"),
        ({"newest_step": 1330}, "gets 7 more steps"),
        ({"excess": 0.05}, "hardly stands out"),
    ],
)
def test_a_finite_loss_is_not_acted_on_too_early(changes: dict[str, float], said: str) -> None:
    proposal = ask(situation(incident(**changes)))
    assert proposal.action is None
    assert said in proposal.reason
    settled = ask(situation(incident(**changes, settled=True)))
    assert isinstance(settled.action, Rollback) is ("confidence" not in changes)


@pytest.mark.parametrize(
    ("kind", "peak", "age", "step", "acted"),
    [
        (Kind.LINGERING, 0, 149, 5_000, False),
        (Kind.LINGERING, 0, 150, 5_000, True),
        (Kind.LINGERING, 0, 30, 310, False),  # a tenth of a short run
        (Kind.LINGERING, 0, 31, 310, True),
        (Kind.DIVERGENT, 19, 19, 5_000, False),
        (Kind.DIVERGENT, 20, 20, 5_000, True),  # a new peak at every step
        (Kind.DIVERGENT, 0, 60, 5_000, False),  # swings below its peak: it may still heal
        (Kind.DIVERGENT, 0, 150, 5_000, True),
    ],
)
def test_a_loss_that_climbs_is_acted_on_soon_and_one_that_stays_up_gets_time_to_heal(
    kind: Kind, peak: int, age: int, step: int, acted: bool
) -> None:
    onset = step - age
    about = incident(
        kind=kind,
        onset_step=onset,
        onset_batches=BatchRange(onset - 1, onset),
        peak_step=onset + peak,
        newest_step=step,
        first_moves={},
    )
    proposal = ask(situation(about, step=step))
    assert isinstance(proposal.action, Rollback) is acted, proposal.reason


def test_nothing_is_proposed_while_a_command_is_on_its_way_or_being_judged() -> None:
    for state in (CommandState.APPROVED, CommandState.DELIVERED):
        assert ask(situation(past=(done(NEAR, state),))).action is None
    assert ask(situation(incident(state=IncidentState.RECOVERING))).action is None
    assert ask(situation(incident(state=IncidentState.CLOSED, closed_step=1300))).action is None


def test_a_watch_on_its_way_does_not_hold_up_a_rollback() -> None:
    assert rollback(ask(situation(past=(done(Watch(200), CommandState.DELIVERED),)))) == NEAR


def test_a_rejection_stands_until_something_new_is_known() -> None:
    no = (replace(done(NEAR, CommandState.REJECTED, step=1255), cause=Diagnosis.UNKNOWN),)

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


def test_a_no_to_a_rollback_outlasts_a_watch_in_between() -> None:
    past = (done(NEAR, CommandState.REJECTED, step=1240), done(Watch(200), step=1250))
    assert ask(situation(past=past)).action is None


def test_what_somebody_may_be_reading_is_not_taken_back_by_noise() -> None:
    waiting = (done(NEAR, CommandState.PROPOSED),)
    for flicker in ({"excess": 0.05}, {"confidence": 0.59}):
        assert rollback(ask(situation(incident(**flicker), past=waiting))) == NEAR
    healing = incident(kind=Kind.RECOVERABLE)
    assert ask(situation(healing, past=waiting)).action == Watch(200)


# --- going back ---


def test_a_few_bad_batches_are_skipped_from_the_snapshot_just_before() -> None:
    """Health does not matter here: a snapshot so close to the onset never is healthy."""
    proposal = ask(situation())
    action = rollback(proposal)
    assert (action.target, action.step) == ("mem-1190", 1190)
    assert action.skip == BatchRange(1198, 1205)
    assert action.lr_factor is None
    assert "The cause is not known" in proposal.reason
    assert "although nothing speaks for the data: that costs 10 s of training" in proposal.reason
    assert "10 steps before the onset" in proposal.reason


@pytest.mark.parametrize(("peak", "size"), [(1200, 5), (1210, 15 - 1), (1220, 20)])
def test_of_a_few_bad_batches_5_to_20_are_skipped(peak: int, size: int) -> None:
    skip = rollback(ask(situation(incident(peak_step=peak, settled=True)))).skip
    assert skip is not None
    assert (skip.first, len(skip)) == (1198, size)


def test_a_climbing_loss_goes_back_to_the_newest_healthy_target() -> None:
    climbing = incident(kind=Kind.DIVERGENT, peak_step=1340)
    proposal = ask(situation(climbing))
    assert rollback(proposal).target == "ckpt-1000"
    assert "the newest healthy one" in proposal.reason


def test_the_skip_reaches_the_newest_bad_batch_within_the_scale_of_the_run() -> None:
    late = incident(kind=Kind.DIVERGENT, peak_step=1340)
    skip = rollback(ask(situation(late))).skip
    assert skip == BatchRange(1198, 1198 + 60)  # 5 % of 1200
    far = incident(
        kind=Kind.DIVERGENT, peak_step=40_000, anomalous_step=40_000, onset_step=12_000,
        onset_batches=BatchRange(11_999, 12_000), first_moves={}, settled=True,
    )  # fmt: skip
    wide = rollback(ask(situation(far, step=40_000))).skip
    assert wide is not None
    assert len(wide) == 500
    short = incident(kind=Kind.DIVERGENT, peak_step=1340, onset_step=300, first_moves={})
    small = rollback(ask(situation(replace(short, onset_batches=BatchRange(299, 300)), step=360)))
    assert small.skip is not None
    assert len(small.skip) == 20


def test_without_a_healthy_target_the_newest_before_the_onset_is_proposed_and_said() -> None:
    young = (target(100, Health.PENDING), target(250, Health.PENDING), target(299, Health.PENDING))
    climbing = incident(
        kind=Kind.DIVERGENT,
        onset_step=300,
        onset_batches=BatchRange(299, 300),
        peak_step=360,
        first_moves={},
    )
    proposal = ask(situation(climbing, step=360, targets=young))
    assert rollback(proposal).target == "ckpt-250"  # step 299 is closer than the margin
    assert "no target from before the spike has proved healthy" in proposal.reason


def test_a_leading_signal_moves_the_target_and_the_skip_back() -> None:
    led = incident(first_moves={"loss": 1200, "update_norm": 1189})
    action = rollback(ask(situation(led)))
    assert action.step < 1189
    assert action.skip is not None
    assert action.skip.first <= 1187


def test_a_signal_that_moved_long_before_is_another_story() -> None:
    early = incident(first_moves={"loss": 1200, "param_norm": 700})
    assert rollback(ask(situation(early))).step == 1190


def test_a_suspect_optimizer_state_asks_for_1000_steps_back_scaled_to_the_run() -> None:
    stale = incident(
        kind=Kind.DIVERGENT, peak_step=1340, first_moves={"loss": 1200, "adam_v_norm": 1195}
    )
    proposal = ask(situation(stale))
    assert rollback(proposal).target == "ckpt-900"  # wanted: a quarter of 1340, 335 steps back
    assert "optimizer's state is suspect" in proposal.reason


def test_a_loss_that_is_not_finite_is_acted_on_at_once() -> None:
    broken = incident(
        kind=Kind.DIVERGENT, confidence=0.6, newest_step=1201, worst_z={"loss": math.inf}
    )
    action = rollback(ask(situation(broken, step=1201)))
    assert action.target == "mem-1190"


def test_where_positions_are_unknown_the_skip_is_counted_from_the_target() -> None:
    blind = incident(onset_batches=None)
    assert rollback(ask(situation(blind))).skip == BatchRange(1198, 1205)


def test_a_target_that_failed_or_was_refused_is_not_proposed_again() -> None:
    for state in (CommandState.REFUSED, CommandState.FAILED):
        assert rollback(ask(situation(past=(done(NEAR, state),)))).target == "ckpt-1150"


# --- when it comes back ---


def recurred(at: int, batches: BatchRange, times: int = 1, **changes: object) -> Situation:
    back = incident(
        recurrences=times,
        recurred_segment=SEGMENT,
        recurred_step=at,
        recurred_batches=batches,
        newest_step=at + 30,
        anomalous_step=at + 30,
        settled=True,
        **changes,
    )
    return situation(back, step=at + 30, past=(done(NEAR),) * times)


def test_a_spike_that_returns_elsewhere_goes_further_back_at_half_the_learning_rate() -> None:
    proposal = ask(recurred(1400, BatchRange(1407, 1408)))
    action = rollback(proposal)
    assert action.step < 1190
    assert (action.lr_factor, action.lr_steps) == (0.5, 250)
    assert "came back once" in proposal.reason


def test_a_spike_that_returns_twice_gets_a_third_of_the_learning_rate() -> None:
    action = rollback(ask(recurred(1400, BatchRange(1407, 1408), times=2)))
    assert action.lr_factor == pytest.approx(1 / 3)


def test_a_spike_that_returns_behind_the_skip_widens_it_and_says_so() -> None:
    proposal = ask(recurred(1199, BatchRange(1208, 1209)))
    action = rollback(proposal)
    assert action.target == "mem-1190"
    assert action.lr_factor is None
    assert action.skip is not None
    assert action.skip.first == 1198
    assert action.skip.end > 1209
    assert "poisoned" in proposal.reason


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


def test_poisoned_data_that_returns_after_the_widening_is_left_to_a_person() -> None:
    wide = Rollback("mem-1190", 1190, BatchRange(1198, 1217))
    twice = recurred(1199, BatchRange(1218, 1219), times=2)
    proposal = ask(replace(twice, past=(done(NEAR), done(wide))))
    assert proposal.action == Stop()
    assert "yours to do" in proposal.reason


def test_after_three_rollbacks_that_did_not_hold_the_run_is_stopped() -> None:
    proposal = ask(recurred(1400, BatchRange(1407, 1408), times=3))
    assert proposal.action == Stop()
    assert "3 rollbacks did not hold" in proposal.reason


def test_the_rollbacks_of_an_earlier_incident_do_not_count() -> None:
    earlier = tuple(done(NEAR, number=n) for n in (1, 2, 2, 2))
    assert rollback(ask(situation(past=earlier))) == rollback(ask(situation()))


# --- no way back ---


def test_without_a_way_back_a_person_is_asked_whatever_the_policy_may_approve() -> None:
    proposal = ask(situation(targets=()))
    assert proposal.action == Stop()
    assert proposal.by_person
    assert "no checkpoint or snapshot" in proposal.reason
    assert "a checkpoint of your own" in proposal.reason


def test_without_a_target_a_climbing_loss_gets_a_lower_learning_rate_and_then_a_stop() -> None:
    climbing = incident(kind=Kind.DIVERGENT, peak_step=1340)
    scale = ask(situation(climbing, targets=(target(1250),)))
    assert scale.action == ScaleLr(0.5, 300)
    assert "the oldest is ckpt-1250" in scale.reason
    tried = situation(climbing, targets=(), past=(done(ScaleLr(0.5, 300)),))
    assert ask(tried).action == Stop()


def test_without_a_target_a_loss_that_is_not_finite_stops_the_run() -> None:
    broken = incident(kind=Kind.DIVERGENT, excess=math.nan)
    assert ask(situation(broken, targets=())).action == Stop()


def test_what_the_attempt_cannot_do_is_not_proposed() -> None:
    no_rollback = EVERY_VERB - {Verb.ROLLBACK}
    assert ask(situation(capabilities=no_rollback)).action == Stop()
    nothing = ask(situation(capabilities=frozenset()))
    assert nothing.action is None
    assert "a person has to act" in nothing.reason


# --- what the loop itself stands in the way of ---

UNFED = Ability(
    "rollback",
    Answer.NO,
    "the loop does not take its items from guard.batches()",
    "Iterate over guard.batches(loader)",
)
AHEAD = Ability(
    "rollback",
    Answer.YES,
    "the loop fetches 1 item ahead of guard.step()",
    "Fetch the next item after guard.step()",
    "what was fetched ahead is trained first",
)


def test_a_loop_that_cannot_go_back_is_told_from_where_to_restart_and_what_helps() -> None:
    no_rollback = EVERY_VERB - {Verb.ROLLBACK}
    for about in (incident(), incident(kind=Kind.DIVERGENT, excess=math.nan)):
        asked = ask(situation(about, capabilities=no_rollback, abilities=(UNFED,)))
        assert asked.action is not None
        assert "The loop does not take its items from guard.batches()." in asked.reason
        assert "Iterate over guard.batches(loader)." in asked.reason
        assert "restart the job from ckpt-1150 (disk, step 1150, 50 steps before" in asked.reason


def test_a_checkpoint_in_memory_is_nothing_to_restart_from() -> None:
    in_memory = (target(1190, Health.HEALTHY, Medium.MEMORY),)
    no_rollback = EVERY_VERB - {Verb.ROLLBACK}
    asked = ask(situation(targets=in_memory, capabilities=no_rollback, abilities=(UNFED,)))
    assert "A rollback cannot be carried out" in asked.reason
    assert "restart the job" not in asked.reason


def test_what_heals_by_itself_is_no_reason_to_restart() -> None:
    healing = incident(kind=Kind.RECOVERABLE)
    no_rollback = EVERY_VERB - {Verb.ROLLBACK}
    asked = ask(situation(healing, capabilities=no_rollback, abilities=(UNFED,)))
    assert "Iterate over guard.batches(loader)." in asked.reason
    assert "restart the job" not in asked.reason


def test_a_rollback_says_what_it_loses_in_a_loop_that_fetches_ahead() -> None:
    asked = ask(situation(abilities=(AHEAD,)))
    assert rollback(asked) == rollback(ask(situation()))
    assert asked.reason.endswith(
        "The loop fetches 1 item ahead of guard.step(). What was fetched ahead is trained first. "
        "Fetch the next item after guard.step()."
    )
    sound = replace(AHEAD, remedy="", reason="", cost="the steps since then are trained again")
    assert ask(situation(abilities=(sound,))).reason == ask(situation()).reason


# --- an approval that comes late ---


@pytest.mark.parametrize("blamed_on", [Cause.LR_TOO_HIGH, Cause.BAD_BATCH, Cause.UNKNOWN])
def test_an_offer_does_not_change_while_nothing_but_steps_go_by(blamed_on: Cause) -> None:
    """A rate's length is counted from the target, a skip from the onset."""
    shown = incident(causes=blamed(blamed_on), excess=0.3, settled=True)
    seen = rollback(ask(situation(shown)))
    for step in range(1340, 9_000, 60):
        later = replace(shown, newest_step=step)
        waiting = (PastCommand(seen, CommandState.PROPOSED, 3, cause=blamed_on),)
        proposal = ask(situation(later, step=step, past=waiting))
        assert proposal.action == seen, proposal.reason
        assert not proposal.replaces(seen, blamed_on)


def test_a_late_approval_whose_target_is_gone_gets_the_next_best() -> None:
    seen = rollback(ask(situation()))
    gone = situation(targets=tuple(t for t in TARGETS if t.name != seen.target))
    fresh = rollback(ask(gone))
    assert fresh.target == "ckpt-1150"
    assert differs(seen, fresh)


def test_only_another_action_target_or_cause_is_a_new_revision() -> None:
    def skipping(end: int) -> Rollback:
        return Rollback("ckpt-1000", 1000, BatchRange(1198, end))

    def slowed(factor: float, steps: int) -> Rollback:
        return Rollback("ckpt-1000", 1000, None, factor, steps)

    assert not differs(skipping(1298), skipping(1698))
    assert not differs(slowed(0.5, 50), slowed(0.3, 70))
    assert differs(slowed(0.5, 50), Rollback("ckpt-1000", 1000))
    assert differs(skipping(1298), Rollback("ckpt-900", 900, BatchRange(1198, 1298)))
    assert differs(skipping(1298), Rollback("ckpt-1000", 1000))
    assert differs(skipping(1298), Rollback("ckpt-1000", 1000, BatchRange(1398, 1400)))
    assert differs(Watch(200), Stop())


def test_a_cause_that_hovers_about_its_bar_leaves_the_offer_alone() -> None:
    """What somebody may be reading outlasts noise; a cause that lost its evidence is said."""
    sure = incident(causes=blamed(Cause.LR_TOO_HIGH, 0.62), settled=True)
    proposal = ask(situation(sure))
    seen = rollback(proposal)
    waiting = (PastCommand(seen, CommandState.PROPOSED, 3, cause=proposal.cause),)
    noise = replace(sure, causes=blamed(Cause.LR_TOO_HIGH, 0.55))
    assert not ask(situation(noise, past=waiting)).replaces(seen, proposal.cause)
    assert ask(situation(noise)).cause is Diagnosis.UNKNOWN
    gone = replace(sure, causes=blamed(Cause.LR_TOO_HIGH, 0.45))
    assert ask(situation(gone, past=waiting)).replaces(seen, proposal.cause)


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
    assert (
        ask(situation(incident(settled=True), past=(expired,), step=1350, targets=gone)).action
        is not None
    )


def test_what_can_wait_ends_where_the_target_falls_out_of_the_jobs_reach() -> None:
    within = replace(
        situation(incident(settled=True)), limits=OrderLimits(rollback_steps_most=1_000)
    )
    proposal = ask(within)
    target_step = rollback(proposal).step
    assert proposal.expires_at_step == target_step + 951
    assert ask(replace(within, step=target_step + 950)).action == proposal.action
    assert ask(replace(within, step=target_step + 951)).action != proposal.action


# --- whatever the situation ---

kinds = st.sampled_from(list(Kind))
steps = st.integers(min_value=5, max_value=5_000)
targets_of_any_kind = st.lists(
    st.builds(
        target, st.integers(0, 6_000), st.sampled_from(list(Health)), st.sampled_from(list(Medium))
    ),
    max_size=8,
)


@given(
    kind=kinds,
    onset=steps,
    peak_after=st.integers(0, 300),
    age=st.integers(0, 1_000),
    confidence=st.floats(0, 1),
    excess=st.floats(allow_nan=True, allow_infinity=True) | st.none(),
    dropped=st.booleans(),
    settled=st.booleans(),
    targets=targets_of_any_kind,
    capabilities=st.sets(st.sampled_from(list(Verb))),
    known=st.booleans(),
)
def test_whatever_is_proposed_can_be_done_and_does_no_harm(
    *,
    kind: Kind,
    onset: int,
    peak_after: int,
    age: int,
    confidence: float,
    excess: float | None,
    dropped: bool,
    settled: bool,
    targets: list[Target],
    capabilities: set[Verb],
    known: bool,
) -> None:
    about = incident(
        kind=kind,
        onset_step=onset,
        onset_batches=BatchRange(onset - 1, onset) if known else None,
        detected_step=onset,
        peak_step=onset + min(peak_after, age),
        newest_step=onset + age,
        anomalous_step=onset + age,
        confidence=confidence,
        excess=excess,
        dropped=dropped,
        settled=settled,
        first_moves={"loss": onset},
    )
    asked = situation(
        about,
        step=onset + age,
        targets=tuple(targets),
        capabilities=frozenset(capabilities),
    )
    proposal = ask(asked)
    assert proposal.reason
    if proposal.action is None:
        return
    if kind in (Kind.RECOVERABLE, Kind.OUTLIER_BATCH):
        assert isinstance(proposal.action, Watch)
    if isinstance(proposal.action, Rollback):
        _check_rollback(proposal.action, asked)


def _check_rollback(action: Rollback, asked: Situation) -> None:
    assert Verb.ROLLBACK in asked.capabilities
    chosen = next(t for t in asked.targets if t.name == action.target)
    assert action.step == chosen.step <= asked.incident.onset_step - POLICY.margin_steps
    assert action.skip is not None
    assert action.skip.first >= chosen.position
    assert POLICY.few_skip_least <= len(action.skip) <= POLICY.skip_most
