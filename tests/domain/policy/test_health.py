"""Which checkpoints may be trusted, and which outlive their ring, on a history that branches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spikeguard_core.diagnosis.lineage import Lineage, lineage_of
from spikeguard_core.policy.proposal import propose
from spikeguard_core.policy.settings import DEFAULT_POLICY
from spikeguard_core.policy.situation import Target
from spikeguard_core.policy.targeting import (
    Alarm,
    Doubts,
    alarms_of,
    health_of,
    left_if_job_dies,
    with_damage,
    worth_keeping,
)
from spikeguard_protocol import (
    BatchRange,
    Cause,
    CommandState,
    Health,
    IncidentState,
    Kind,
    Medium,
    Outcome,
    Rollback,
    SegmentId,
    SegmentPoint,
)
from tests.domain.policy.situations import blamed, done, incident, situation, target

FIRST, SECOND, THIRD = (SegmentId("00c0ffee00c0ffee", n) for n in range(3))
STRAIGHT = lineage_of({FIRST: None}, FIRST)
BRANCHED = lineage_of({FIRST: None, SECOND: SegmentPoint(FIRST, 300)}, SECOND)


def health(
    step: int,
    newest: int,
    *alarms: Alarm,
    lineage: Lineage = STRAIGHT,
    segment: SegmentId = FIRST,
) -> Health:
    return health_of(
        SegmentPoint(segment, step), newest_step=newest, doubts=Doubts(alarms, lineage)
    )


def test_a_target_is_pending_until_100_calm_steps_have_passed() -> None:
    assert health(300, 399) is Health.PENDING
    assert health(300, 400) is Health.HEALTHY


@pytest.mark.parametrize(
    ("onset", "expected"),
    [(301, "pending"), (400, "pending"), (401, "healthy"), (299, "suspect")],
)
def test_an_open_incident_lets_nothing_count_as_healthy_inside_the_horizon_and_after_it(
    onset: int, expected: str
) -> None:
    assert health(300, 600, Alarm(FIRST, onset, None)) == expected


def test_a_target_taken_after_an_incident_ended_is_not_doubted_for_it() -> None:
    ended = Alarm(FIRST, 250, 290)
    assert health(280, 600, ended) is Health.SUSPECT
    assert health(300, 600, ended) is Health.HEALTHY


def test_a_precursor_inside_the_horizon_leaves_a_target_pending() -> None:
    assert health(300, 600, Alarm(FIRST, 350, 350)) is Health.PENDING
    assert health(351, 600, Alarm(FIRST, 350, 350)) is Health.HEALTHY


def test_a_rollback_clears_what_it_undid() -> None:
    """The onset at 310 lies off the lineage once the run has gone back to 300."""
    onset = Alarm(FIRST, 310, None)
    assert health(312, 320, onset) is Health.SUSPECT
    assert health(300, 320, onset, lineage=BRANCHED) is Health.PENDING
    assert health(300, 400, onset, lineage=BRANCHED) is Health.HEALTHY


def test_a_checkpoint_of_the_abandoned_branch_is_never_trusted_again() -> None:
    assert health(305, 900, lineage=BRANCHED) is Health.SUSPECT


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_incident_is_forgiven_unless_nobody_knows_how_it_ended(outcome: Outcome) -> None:
    closed = incident(state=IncidentState.CLOSED, outcome=outcome, closed_step=1400)
    assert bool(alarms_of(closed)) is (outcome is Outcome.RUN_ENDED)


def test_an_incident_that_came_back_casts_doubt_from_both_onsets() -> None:
    again = incident(recurrences=1, recurred_segment=SECOND, recurred_step=1195)
    assert [(a.segment, a.step) for a in alarms_of(again)] == [(FIRST, 1200), (SECOND, 1195)]


def test_the_lineage_follows_every_rollback_and_ends_where_history_is_unknown() -> None:
    parents = {
        FIRST: None,
        SECOND: SegmentPoint(FIRST, 300),
        THIRD: SegmentPoint(SECOND, 350),
    }
    lineage = lineage_of(parents, THIRD)
    assert dict(lineage.last_steps) == {THIRD: None, SECOND: 350, FIRST: 300}
    assert not lineage.holds(SegmentPoint(FIRST, 301))
    assert lineage.holds(SegmentPoint(THIRD, 10_000))
    cut = lineage_of({THIRD: SegmentPoint(SECOND, 350)}, THIRD)
    assert not cut.holds(SegmentPoint(FIRST, 100))


# ---- damage -----------------------------------------------------------------------------------

NAN = "3 of 768 values of model.wte.weight are not finite"


def damaged(step: int) -> Target:
    return replace(target(step), damage=NAN)


def test_a_damaged_checkpoint_is_never_proposed_nor_a_snapshot_that_was_taken_after_it() -> None:
    """The next older whole one is, and the reason says why not the newer."""
    near = target(1190, Health.PENDING, Medium.MEMORY)
    targets = with_damage((target(900), target(1000), damaged(1150), near))
    assert [t.health for t in targets] == ["healthy", "healthy", "damaged", "damaged"]
    proposal = propose(situation(targets=targets), DEFAULT_POLICY)
    assert isinstance(proposal.action, Rollback)
    assert proposal.action.target == "ckpt-1000"
    assert f"(mem-1190 is newer and damaged: taken after ckpt-1150, where {NAN})" in proposal.reason


def test_a_checkpoint_that_is_whole_again_clears_the_snapshots_after_it() -> None:
    newest = target(1190, Health.HEALTHY, Medium.MEMORY)
    targets = with_damage((damaged(1000), target(1150), newest))
    assert [t.damage for t in targets] == [NAN, None, None]


def test_where_every_checkpoint_is_damaged_none_is_proposed_and_the_reason_says_so() -> None:
    targets = with_damage((damaged(900), damaged(1000)))
    proposal = propose(situation(incident(kind=Kind.DIVERGENT), targets=targets), DEFAULT_POLICY)
    assert not isinstance(proposal.action, Rollback)
    assert "no checkpoint or snapshot that is whole and within reach" in proposal.reason


def test_a_damaged_target_neither_outlives_its_ring_nor_counts_as_a_way_back() -> None:
    targets = with_damage((target(1000), damaged(1150)))
    kept = worth_keeping(targets, incident=incident(), warned_step=None)
    assert kept == {"ckpt-1000"}
    said = left_if_job_dies(targets, incident())
    assert f"step 1,000 is on disk (ckpt-1000); ckpt-1150 is damaged: {NAN}" in said


RING = tuple(target(s, Health.PENDING, Medium.MEMORY) for s in (160, 180, 200, 220))


def test_a_warning_keeps_what_lies_before_it_however_far_the_run_has_gone() -> None:
    later = (*RING, target(240, Health.PENDING, Medium.MEMORY))
    kept = worth_keeping(later, incident=None, warned_step=215)
    assert kept == {"mem-200"}


def test_what_outlives_the_job_and_what_is_ordered_are_kept_too() -> None:
    disk = (target(100), target(140, Health.PENDING))
    kept = worth_keeping(
        (*disk, *RING),
        incident=incident(onset_step=221, first_moves={"loss": 221}),
        warned_step=None,
        ordered={"mem-160", "gone"},
    )
    assert kept == {"ckpt-100", "ckpt-140", "mem-200", "mem-160"}


def test_nothing_is_kept_while_nothing_is_wrong() -> None:
    assert worth_keeping(RING, incident=None, warned_step=None) == frozenset()


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ((target(80), target(680), RING[0]), "step 80 is on disk (ckpt-80); step 160 is in memory"),
        (
            (target(680), RING[0]),
            "no checkpoint on disk is from before the cause: a restart goes on",
        ),
        ((target(200), RING[0]), "If the job dies now: step 200 is on disk (ckpt-200)"),
        ((RING[0],), "nothing is on disk to go on from; step 160 is in memory only and would be"),
    ],
)
def test_what_is_left_if_the_job_dies_is_told(targets: tuple[Target, ...], said: str) -> None:
    open_one = incident(onset_step=221, first_moves={"loss": 221})
    assert said in left_if_job_dies(targets, open_one)


def test_an_older_target_than_the_newest_from_before_the_cause_says_why() -> None:
    back = incident(
        causes=blamed(Cause.LR_TOO_HIGH), recurrences=1, recurred_step=241, settled=True,
        onset_step=222, onset_batches=BatchRange(221, 222), newest_step=300, first_moves={},
        recurred_batches=BatchRange(240, 241), came_back=True,
    )  # fmt: skip
    disk = (target(160, Health.PENDING), target(200, Health.PENDING))
    tried = replace(done(Rollback("ckpt-200", 200), step=230), cause=Cause.LR_TOO_HIGH.value)
    proposal = propose(situation(back, targets=disk, past=(tried,), step=300), DEFAULT_POLICY)
    assert isinstance(proposal.action, Rollback)
    assert proposal.action.step == 160
    assert "but for step 200, after which it was there again" in proposal.reason
    assert "pending: fewer than 100 calm steps followed it" in proposal.reason
    refused = replace(done(Rollback("ckpt-200", 200), CommandState.REFUSED))
    first = replace(back, recurrences=0, recurred_step=None, recurred_batches=None)
    proposal = propose(situation(first, targets=disk, past=(refused,), step=300), DEFAULT_POLICY)
    assert "but for step 200, which the job could not go back to" in proposal.reason
