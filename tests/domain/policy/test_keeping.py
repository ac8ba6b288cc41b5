"""Which targets outlive their ring, because a decision that comes late may still want them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spikeguard_core.policy.proposal import propose
from spikeguard_core.policy.settings import DEFAULT_POLICY
from spikeguard_core.policy.situation import Target
from spikeguard_core.policy.targeting import left_if_job_dies, worth_keeping
from spikeguard_protocol import BatchRange, Cause, CommandState, Health, Medium, Rollback
from tests.domain.policy.situations import blamed, done, incident, situation, target

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
