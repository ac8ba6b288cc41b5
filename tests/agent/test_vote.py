"""What all ranks come to, from the numbers that each of them votes."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
import torch

from spikeguard.measure.readback import Row
from spikeguard.ranks import agreement
from spikeguard.ranks.agreement import QUIET, STREAK, ReplicaCheck
from spikeguard.ranks.rank_group import World
from spikeguard.ranks.replicas import HIGH, LOW, compares_at
from spikeguard.ranks.vote import (
    LARGEST,
    LOSS_SUM,
    LOSS_WEIGHT,
    Own,
    Reduced,
    Vote,
    Voter,
    Word,
    rank_of,
    ranked,
    value_of,
)


def row(loss: float, step: int = 9, weight: float = 1.0, **signals: float) -> Row:
    measured = {"loss": loss, LOSS_SUM: loss * weight, "grad_norm": 0.5, **signals}
    scalars = {name: torch.tensor(value) for name, value in measured.items()}
    return Row(step, 0, step, 1.0, None, None, {LOSS_WEIGHT: weight}, scalars)


class Voted:
    """One step's votes of all ranks."""

    def __init__(
        self,
        rows: list[Row | None],
        word: Word = Word(),  # noqa: B008
        sharded: bool = False,
        same_as: tuple[int, ...] = (),
        **of_ranks: list[Any],
    ) -> None:
        votes = []
        self.owns: list[Own] = []
        for rank, own in enumerate(rows):
            voter = Voter(rank, len(rows), sharded, same_as)
            voter.snapshot_bytes = of_ranks.get("sizes", [0] * len(rows))[rank]
            voter.snapshot_interval = of_ranks.get("intervals", [0] * len(rows))[rank]
            ended = of_ranks.get("ended", [False] * len(rows))[rank]
            vote, numbers = voter.vote(word if rank == 0 else None, own, ended)
            votes.append(vote)
            self.owns.append(numbers)
        summed = [sum(column) for column in zip(*(v.summed for v in votes), strict=True)]
        largest = [max(column) for column in zip(*(v.largest for v in votes), strict=True)]
        self.reduced = Reduced(Vote(summed, largest), len(rows), sharded)


def reduced(rows: list[Row | None], **given: Any) -> Reduced:
    return Voted(rows, **given).reduced


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


# ---- replicas ------------------------------------------------------------------------------------


def check(ranks: int, **known: Any) -> ReplicaCheck:
    return ReplicaCheck(World(0, ranks, timedelta(seconds=1)), **known)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Judges a step as rank 0 of ranks that vote as given; how often they gathered."""
    held: dict[str, Any] = {"gathers": 0}

    def gather(*_: Any) -> list[Own]:
        held["gathers"] += 1
        return list(held["owns"])

    monkeypatch.setattr(agreement, "gather_numbers", gather)

    def judge(checked: ReplicaCheck, rows: list[Row | None], **given: Any) -> Any:
        voted = Voted(rows, **given)
        held["owns"] = voted.owns
        return checked.judge(voted.reduced, voted.owns[0])

    judge.held = held  # type: ignore[attr-defined]
    return judge


def bits(*low: float, step: int = 9) -> list[Row | None]:
    return [row(1.0, step, **{LOW: number, HIGH: 2.0**23}) for number in low]


def test_ranks_that_differ_from_the_beginning_are_no_replicas_unless_they_have_to_be(
    gathered: Any,
) -> None:
    """Pipeline stages hold other weights; under DDP that would be a fault."""
    stages = check(2)
    assert gathered(stages, bits(5.0, 6.0)).equal is None
    assert not stages.compares
    later = check(2)
    assert gathered(later, bits(5.0, 5.0)).equal is True
    assert gathered(later, bits(5.0, 6.0)).equal is False
    assert not check(2, same_as=(0, 1)).compares


def test_updates_left_out_at_every_step_by_one_rank_are_not_gathered_each_time(
    gathered: Any,
) -> None:
    checked = check(2, known=True)
    for step in range(1, 2 * QUIET + 1):
        gathered(checked, [row(1.0, step), row(1.0, step, update_dropped=1.0)])
    assert gathered.held["gathers"] == 2


def test_gradients_that_differ_step_after_step_are_those_of_no_replicas(gathered: Any) -> None:
    """Once it may be a flipped bit, which is told; rounding of another order is none."""
    checked = check(2, known=True)
    assert gathered(checked, [row(1.0, 1), row(1.0, 1, grad_norm=0.500001)]) == (None, (), "")
    assert gathered(checked, [row(1.0, 2), row(1.0, 2, grad_norm=0.6)]).ranks == (1,)
    assert gathered(checked, [row(1.0, 3), row(1.0, 3)]) == (None, (), "")
    for step in range(4, 4 + STREAK):
        assert not checked.unlike
        found = gathered(checked, [row(1.0, step), row(1.0, step, grad_norm=0.6)])
    assert checked.unlike
    assert not checked.compares
    assert "Ranks(replicated=False)" in found.said
    assert gathered(checked, [row(1.0, 9), row(1.0, 9, grad_norm=0.6)]) == (None, (), "")


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
