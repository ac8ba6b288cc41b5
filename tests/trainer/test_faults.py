"""Faults as they are written down."""

from __future__ import annotations

import pytest

from spikeguard_trainer.faults import (
    RANGES,
    Fault,
    FaultError,
    FaultName,
    parse_fault,
)


def test_a_fault_is_written_as_name_step_length_strength() -> None:
    assert parse_fault("lr_bump@200:5:20") == Fault(FaultName.LR_BUMP, 200, 5, 20.0)
    assert parse_fault("bad_batch.shuffled@7:2:0.5").name is FaultName.BAD_BATCH_SHUFFLED


@pytest.mark.parametrize("name", FaultName)
def test_length_and_strength_have_defaults_within_their_limits(name: FaultName) -> None:
    fault = parse_fault(f"{name}@9")
    assert (fault.length, fault.strength) == (RANGES[name].length, RANGES[name].default)
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lr_bump", r"NAME@STEP"),
        ("lr_bump@", r"NAME@STEP"),
        ("lr_bump@5:", r"NAME@STEP"),
        ("meteor@5", r"no fault; there are .*lr_bump"),
        ("lr_bump@0", r"count from 1"),
        ("lr_bump@5:0", r"count from 1"),
        ("lr_bump@5:1:-2", r"factor on the learning rate\) lies in \[0, "),
        ("bad_batch@5:1:2", r"lies in \[0, 1\], got 2"),
        ("lr_bump@5:1:nan", r"lies in"),
        ("lr_bump@5:1:much", r"STRENGTH is a number, got 'much'"),
        ("bad_batch@rollback+5", r"batch positions: give a step, not rollback\+N"),
    ],
)
def test_what_cannot_be_injected_is_refused_with_its_limit(text: str, says: str) -> None:
    with pytest.raises(FaultError, match=says):
        parse_fault(text)


def test_a_fault_of_the_data_hangs_on_positions_and_no_other_does() -> None:
    """The batch of step S has position S-1 as long as nothing was skipped."""
    data, moment = parse_fault("gradient_ascent@10:2"), parse_fault("lr_bump@10:2")
    assert [p for p in range(20) if data.hits_position(p)] == [9, 10]
    assert [s for s in range(20) if moment.hits_step(s)] == [10, 11]
    assert not any(data.hits_step(s) or moment.hits_position(s) for s in range(20))


def test_a_fault_may_wait_for_the_first_rollback() -> None:
    fault = parse_fault("bit_flip@rollback+15:2:30")
    assert parse_fault(str(fault)) == fault
    assert not any(fault.hits_step(step) for step in range(400))
    assert [step for step in range(400) if fault.hits_step(step, 300)] == [315, 316]
