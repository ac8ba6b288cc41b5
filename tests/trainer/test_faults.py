"""Faults as they are written down."""

from __future__ import annotations

import pytest

from spikeguard_trainer.faults import (
    FaultError,
    parse_fault,
)


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
