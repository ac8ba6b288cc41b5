"""Which targets outlive their ring, because a decision that comes late may still want them."""

from __future__ import annotations

from dataclasses import replace

from spikeguard_protocol import Health, Medium
from spikeguard_server.domain.policy.settings import DEFAULT_POLICY
from spikeguard_server.domain.policy.targeting import choose_target, worth_keeping
from tests.domain.policy.situations import incident, situation, target

RING = tuple(target(s, Health.PENDING, Medium.MEMORY) for s in (160, 180, 200, 220))


def test_the_snapshot_right_before_the_onset_is_not_the_one_that_is_kept() -> None:
    """It holds the update that did it; the one that a rollback can use must not leave the ring."""
    open_one = incident(onset_step=221, peak_step=222, first_moves={"loss": 221})
    kept = worth_keeping(RING, DEFAULT_POLICY, incident=open_one, warned_step=None)
    assert kept == {"mem-200"}
    choice = choose_target(situation(open_one, targets=RING), DEFAULT_POLICY)
    assert choice is not None
    assert {choice.target.name} == kept


def test_a_warning_keeps_what_lies_before_it_however_far_the_run_has_gone() -> None:
    later = (*RING, target(240, Health.PENDING, Medium.MEMORY))
    kept = worth_keeping(later, DEFAULT_POLICY, incident=None, warned_step=215)
    assert kept == {"mem-200"}


def test_a_signal_that_moved_before_the_loss_moves_the_bound() -> None:
    moved = incident(onset_step=221, first_moves={"adam_v_norm": 201, "loss": 221})
    kept = worth_keeping(RING, DEFAULT_POLICY, incident=moved, warned_step=None)
    assert kept == {"mem-180"}


def test_the_newest_healthy_one_on_disk_and_what_is_ordered_are_kept_too() -> None:
    disk = (target(100), target(140, Health.SUSPECT))
    kept = worth_keeping(
        (*disk, *RING),
        replace(DEFAULT_POLICY, margin_steps=30),
        incident=incident(onset_step=221, first_moves={"loss": 221}),
        warned_step=None,
        ordered={"mem-160", "gone"},
    )
    assert kept == {"ckpt-100", "mem-180", "mem-160"}


def test_nothing_is_kept_while_nothing_is_wrong() -> None:
    assert worth_keeping(RING, DEFAULT_POLICY, incident=None, warned_step=None) == frozenset()
