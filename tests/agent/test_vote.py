"""What all ranks come to, from the numbers that each of them votes."""

from __future__ import annotations

import math

import pytest
import torch

from spikeguard.measure.readback import Row
from spikeguard.ranks.replicas import compares_at
from spikeguard.ranks.vote import (
    LARGEST,
    LOSS_SUM,
    LOSS_WEIGHT,
    Reduced,
    Vote,
    Voter,
    rank_of,
    ranked,
    value_of,
)


def row(loss: float, **signals: float) -> Row:
    measured = {"loss": loss, LOSS_SUM: loss, "grad_norm": 0.5, **signals}
    scalars = {name: torch.tensor(value) for name, value in measured.items()}
    return Row(9, 0, 9, 1.0, None, None, {LOSS_WEIGHT: 1.0}, scalars)


def reduced(rows: list[Row]) -> Reduced:
    """One step's votes of all ranks."""
    votes = [Voter(rank, len(rows)).vote(None, row)[0] for rank, row in enumerate(rows)]
    summed = [sum(column) for column in zip(*(v.summed for v in votes), strict=True)]
    largest = [max(column) for column in zip(*(v.largest for v in votes), strict=True)]
    return Reduced(Vote(summed, largest), len(rows), sharded=False)


def test_a_vote_is_as_long_for_a_thousand_ranks_as_for_two() -> None:
    few, many = (Voter(1, ranks).vote(None, row(1.0))[0] for ranks in (2, 1_024))
    assert [len(each) for each in few] == [len(each) for each in many]
    assert len(many.largest) == len(LARGEST)
    assert 8 * sum(map(len, many)) < 600  # bytes


@pytest.mark.parametrize("value", [0.0, -1.5, 3.25e-30, -math.inf, math.inf, 3.4e38, 1e-45])
def test_a_value_travels_with_its_rank_bit_for_bit_and_in_order(value: float) -> None:
    own = torch.tensor(value).item()
    packed = ranked(own, 70_000)
    assert (value_of(packed), rank_of(packed)) == (own, 70_000)
    assert ranked(own, 3) > packed  # among equal values the lowest rank
    assert own == math.inf or ranked(math.inf, 9) > packed
    assert own == -math.inf or ranked(-math.inf, 0) < packed
    assert value_of(ranked(math.nan, 1)) == math.inf


@pytest.mark.parametrize("every", [7, 10, 100])
def test_weights_are_compared_once_in_each_stretch_at_no_period(every: int) -> None:
    steps = [step for step in range(1, 60 * every) if compares_at(step, every)]
    assert steps[0] == 1
    stretches = [step // every for step in steps if step >= every]
    assert stretches == list(range(1, 60))
    for period in range(2, every + 1):  # no averaging of that period hides all of them
        assert len({step % period for step in steps}) > 1


def test_what_any_rank_read_otherwise_travels_with_the_vote() -> None:
    """So that rank 0 corrects the result, and the server hears of it."""
    same = row(2.0)
    other = row(2.0, other_data=1.0)
    found = reduced([same, same, other])
    assert found.other_data
    assert found.values(same.read())["other_data"] == 1.0
    assert not reduced([same, same]).other_data
