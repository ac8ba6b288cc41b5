"""The cause decides the remedy: what is proposed, how it is explained, and what is left to do."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from spikeguard_core.policy.finding import (
    FirstMove,
    checks_of,
    first_move_of,
    follow_ups_of,
)
from spikeguard_core.policy.proposal import propose
from spikeguard_core.policy.remedies import ACTING, DATA, GoBack, remedy_of
from spikeguard_core.policy.rules import Proposal
from spikeguard_core.policy.settings import (
    DEFAULT_POLICY,
    Policy,
)
from spikeguard_core.policy.situation import OrderLimits, Situation
from spikeguard_core.suspicion import Mark
from spikeguard_protocol import BatchRange, Cause, CommandState, Kind, Rollback, Verb, Watch
from tests.domain.policy.situations import SEGMENT, blamed, done, incident, situation, target

BY_HAND = frozenset({Cause.LOSS_SCALE_OVERFLOW, Cause.STALLED_WEIGHTS})
RAISED = Mark(1198, 1204, ratio=40.0)


def about(cause: Cause, sure: float = 0.9, mark: Mark | None = None, **changes: Any) -> Situation:
    return situation(incident(causes=blamed(cause, sure, mark), settled=True, **changes))


def ask(asked: Situation, policy: Policy = DEFAULT_POLICY) -> tuple[Rollback, Proposal]:
    proposal = propose(asked, policy)
    assert isinstance(proposal.action, Rollback), proposal.reason
    return proposal.action, proposal


def test_there_is_a_row_for_every_diagnosis_and_every_kind() -> None:
    for diagnosis, kind in product(Cause, Kind):
        row = remedy_of(diagnosis, kind)
        assert row.diagnosis is diagnosis
        assert (row.back is GoBack.NO) is (kind not in ACTING or diagnosis in BY_HAND)


def test_every_sentence_of_the_table_can_be_filled_in_whatever_is_known() -> None:
    marks = (None, RAISED, Mark(5), Mark(5, rank=3))
    for cause, kind, mark in product(Cause, Kind, marks):
        seen = incident(kind=kind, causes=blamed(cause, mark=mark))
        for text in (*checks_of(seen), *follow_ups_of(seen)):
            assert re.fullmatch(r"[A-Z].*[.?]", text), text
            assert "{" not in text
            assert "None" not in text


def test_weights_that_no_update_changed_are_gone_back_from_where_a_person_says_so() -> None:
    """However calm the loss is."""
    calm: dict[str, Any] = {
        "signal": "param_norm",
        "peak_loss": 3.11,
        "worst_z": {"param_norm": 90},
    }
    seen = about(Cause.WEIGHT_CORRUPTION, mark=Mark(1195, 1200), **calm)
    assert ask(seen)[1].by_person
    assert isinstance(propose(about(Cause.BAD_BATCH, **calm), DEFAULT_POLICY).action, Watch)


@pytest.mark.parametrize(
    "cause", [c for c in Cause if c not in DATA | BY_HAND | {Cause.UNKNOWN, Cause.REPLICAS_APART}]
)
def test_no_innocent_batch_is_skipped_where_the_fault_lies_outside_the_data(cause: Cause) -> None:
    action, proposal = ask(about(cause))
    assert action.skip is None
    assert "skip 7" not in proposal.reason
    assert "few batches" not in proposal.reason
    assert "No batch is skipped" in proposal.reason
    assert f"what speaks for {cause}" in proposal.reason


def test_a_rate_that_jumped_is_capped_at_what_it_was() -> None:
    """So that the steps of which the rate was as usual are trained as usual."""
    action, _ = ask(about(Cause.LR_TOO_HIGH, mark=replace(RAISED, usual=0.002)))
    assert (action.lr_factor, action.lr_cap) == (0.05, 0.002)
    again = about(
        Cause.LR_TOO_HIGH, mark=replace(RAISED, usual=0.002), recurrences=1, recurred_step=1400,
        newest_step=1430,
    )  # fmt: skip
    lower, _ = ask(replace(again, step=1430, past=(done(action),)))
    assert lower.lr_cap is None
    elsewhere = about(
        Cause.LR_TOO_HIGH, mark=Mark(1398, 1404, 40.0, usual=0.003), recurrences=1,
        recurred_step=1400, newest_step=1430,
    )  # fmt: skip
    anew, _ = ask(replace(elsewhere, step=1430, past=(done(action),)))
    assert anew.lr_cap == 0.003


@pytest.mark.parametrize(("excess", "asked"), [(0.7, True), (0.31, False)])
def test_whether_data_became_harder_for_good_is_for_a_person_to_say(
    excess: float, asked: bool
) -> None:
    """A loss that stays up is no damage then, and no policy goes back alone."""
    _, proposal = ask(about(Cause.BAD_BATCH, mark=Mark(1200), excess=excess))
    assert proposal.by_person is asked
    told = "note the new stage where it began (`spikeguard note --step 1199`)"
    assert (told in proposal.reason) is asked
    _, other = ask(about(Cause.WEIGHT_CORRUPTION, mark=Mark(1200), excess=excess))
    assert not other.by_person


@pytest.mark.parametrize(
    ("last", "kind", "back", "asked"),
    [
        (None, Kind.LINGERING, True, True),
        (1204, Kind.LINGERING, True, False),
        (None, Kind.DIVERGENT, True, False),
        (None, Kind.LINGERING, False, False),
    ],
    ids=["still up", "back down", "diverging", "higher than ever"],
)
def test_whether_the_schedule_raised_the_rate_on_purpose_is_for_a_person_to_say(
    last: int | None, kind: Kind, back: bool, asked: bool
) -> None:
    mark = Mark(1198, last, ratio=20.0, usual=1.5e-05, back=back)
    _, proposal = ask(about(Cause.LR_TOO_HIGH, mark=mark, kind=kind, peak_step=1340))
    assert proposal.by_person is asked
    assert ("a warm restart, a new stage" in proposal.reason) is asked


@pytest.mark.parametrize(
    ("cause", "kind", "meant"),
    [
        (Cause.BAD_BATCH, Kind.LINGERING, True),
        (Cause.BAD_BATCH, Kind.DIVERGENT, False),
        (Cause.WEIGHT_CORRUPTION, Kind.LINGERING, False),
    ],
)
def test_a_new_level_that_somebody_meant_is_watched_but_no_damage_is(
    cause: Cause, kind: Kind, meant: bool
) -> None:
    noted = "Ada noted a change after step 1,199: data mix 3."
    proposal = propose(replace(about(cause, kind=kind), noted=noted), DEFAULT_POLICY)
    assert isinstance(proposal.action, Watch if meant else Rollback)


@pytest.mark.parametrize("excess", [0.31, 0.02])
def test_who_was_asked_about_harder_data_still_is_once_the_model_has_learnt_it(
    excess: float,
) -> None:
    """The nearer the loss came, the less was a person asked: it was gone back from at the end."""
    asked = done(Rollback("mem-1190", 1190), CommandState.PROPOSED)
    healing = about(Cause.BAD_BATCH, mark=Mark(1200), excess=excess)
    proposal = propose(replace(healing, past=(asked,)), DEFAULT_POLICY)
    assert proposal.action is None or proposal.by_person


@pytest.mark.parametrize("cause", [Cause.WEIGHT_CORRUPTION, Cause.STALE_SECOND_MOMENT])
def test_damage_that_does_not_heal_is_not_waited_for_unless_going_back_costs_more(
    cause: Cause,
) -> None:
    """The wait is a tenth of the run here, 121 steps, and the target lies 20 back."""
    mark, young = Mark(1199, 1200), {"newest_step": 1210, "peak_step": 1209}
    sure = situation(incident(causes=blamed(cause, 0.95, mark), **young), step=1210)
    assert isinstance(propose(sure, DEFAULT_POLICY).action, Rollback)
    guess = situation(incident(causes=blamed(cause, 0.7, mark), **young), step=1210)
    assert "Too early" in propose(guess, DEFAULT_POLICY).reason
    far = replace(sure, targets=(target(900), target(1000)))
    assert "Too early" in propose(far, DEFAULT_POLICY).reason


def returned(cause: Cause, gone_back: Rollback, **changes: Any) -> Situation:
    """A spike that was gone back from is there again, two steps old."""
    back = {
        "causes": blamed(cause), "recurrences": 1, "recurred_segment": SEGMENT,
        "recurred_step": 1201, "recurred_batches": BatchRange(1200, 1201), "newest_step": 1202,
        "anomalous_step": 1202, "confidence": 0.7, "peak_step": 1208, "came_back": True,
    }  # fmt: skip
    return situation(incident(**back | changes), step=1202, past=(done(gone_back),))


def test_what_came_back_at_its_own_step_behind_the_skip_may_hang_on_the_step() -> None:
    """A term that the loss holds from a step on comes back there with whatever batches."""
    skipped = Rollback("mem-1190", 1190, BatchRange(1198, 1203))
    behind = {"recurred_batches": BatchRange(1204, 1205), "settled": True}
    at_its_step = ask(returned(Cause.BAD_BATCH, skipped, recurred_step=1200, **behind))[1].reason
    assert "or it hangs on that step" in at_its_step
    elsewhere = ask(returned(Cause.BAD_BATCH, skipped, recurred_step=1197, **behind))[1].reason
    assert "looks poisoned" in elsewhere


def test_a_rate_that_was_lowered_where_it_came_back_is_lowered_as_far_again() -> None:
    """How far the second rise reaches is not known yet."""
    asked = returned(Cause.LR_TOO_HIGH, Rollback("mem-1190", 1190, None, 0.05, 30))
    action, _ = ask(asked)
    assert action.lr_steps is not None
    assert (action.lr_factor, action.step + action.lr_steps) == (0.05, 1220)


REGISTERED = {"swap-data": "20 % a step", "tight-clip": ""}


def test_what_came_back_after_a_plain_rollback_is_gone_back_from_with_what_the_job_registered() -> (
    None
):
    """In the order of their registration, each once; the rate stays, so that one change is judged.
    Their cost stands in the reason, and no policy that approves rollbacks approves it."""
    plain = recurred_without_its_batches(Rollback("mem-1190", 1190))
    action, proposal = ask(replace(plain, mitigations=REGISTERED))
    assert (action.apply, action.lr_factor) == ("swap-data", None)
    assert action.apply_steps is not None
    assert action.step + action.apply_steps > 1210
    assert "go on with swap-data" in proposal.reason
    assert "which costs 20 % a step" in proposal.reason
    assert proposal.by_person
    again = recurred_without_its_batches(action)
    assert ask(replace(again, mitigations=REGISTERED))[0].apply == "tight-clip"
    lowered, _ = ask(replace(again, mitigations={"swap-data": ""}))
    assert (lowered.apply, lowered.lr_factor is not None) == (None, True)
    slower = recurred_without_its_batches(lowered, Cause.LR_TOO_HIGH)
    assert ask(replace(slower, mitigations=REGISTERED))[0].apply == "swap-data"


def test_nothing_is_applied_that_is_not_registered_cannot_be_done_or_was_not_needed() -> None:
    plain = recurred_without_its_batches(Rollback("mem-1190", 1190))
    cannot = replace(plain, mitigations=REGISTERED, capabilities=plain.capabilities - {Verb.APPLY})
    fast = recurred_without_its_batches(Rollback("mem-1190", 1190), Cause.LR_TOO_HIGH)
    for asked in (plain, cannot, replace(fast, mitigations=REGISTERED)):
        assert ask(asked)[0].apply is None
    first = replace(about(Cause.UNKNOWN), mitigations=REGISTERED)
    assert ask(first)[0].apply is None
    short = replace(plain, mitigations=REGISTERED, limits=OrderLimits(apply_steps_most=7))
    assert ask(short)[0].apply_steps == 7


def recurred_without_its_batches(gone_back: Rollback, cause: Cause = Cause.UNKNOWN) -> Situation:
    """It came back ten steps later than before, on other batches."""
    return returned(
        cause, gone_back, recurred_step=1210, recurred_batches=BatchRange(1240, 1241),
        newest_step=1260, anomalous_step=1260, confidence=0.95, settled=True, peak_step=1215,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gone_back", "changes"),
    [
        (Rollback("mem-1190", 1190), {"recurred_batches": BatchRange(1230, 1231)}),
        (
            Rollback("mem-1190", 1190),
            {
                "recurred_step": 1231,
                "recurred_batches": BatchRange(1230, 1231),
                "first_peak_step": 1208,
                "peak_step": 1233,
            },
        ),
        (
            Rollback("mem-1190", 1190),
            {"recurred_step": 1200, "recurred_batches": None, "came_back": False},
        ),
        (Rollback("mem-1190", 1190, BatchRange(1199, 1200)), {}),
    ],
    ids=["elsewhere", "elsewhere and higher", "never left", "left out"],
)
def test_batches_with_which_it_did_not_come_back_are_not_skipped(
    gone_back: Rollback, changes: dict[str, Any]
) -> None:
    early = propose(returned(Cause.LR_TOO_HIGH, gone_back, **changes), DEFAULT_POLICY)
    assert early.action is None
    late = returned(Cause.LR_TOO_HIGH, gone_back, settled=True, **changes)
    action, proposal = ask(late)
    assert action.skip is None
    assert "with which it came back" not in proposal.reason
    assert ("came back once" in proposal.reason) is changes.get("came_back", True)


# --- nobody is asked without a reason ---


def test_what_moved_long_before_or_before_the_known_cause_is_not_the_first_to_move() -> None:
    """Of a dozen signals one strays by chance now and then: that is another story."""
    early = incident(first_moves={"adam_v_norm": 1175, "grad_norm": 1200, "loss": 1201})
    assert first_move_of(early) == FirstMove("grad_norm", 1200)
    near = replace(early, first_moves={"adam_v_norm": 1190, "loss": 1200})
    assert first_move_of(near) == FirstMove("adam_v_norm", 1190)
    known = replace(near, causes=blamed(Cause.LR_TOO_HIGH, 0.9, RAISED))
    assert first_move_of(known) == FirstMove("lr", 1198)
    behind = Mark(1202, 1202)  # where the likely cause shows, behind the onset
    after = replace(near, causes=blamed(Cause.STALE_SECOND_MOMENT, 0.9, behind))
    assert first_move_of(after) == FirstMove("loss", 1200)
