"""What ranks say to one another: a vote, whether they are alike, how long each is waited for."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from spikeguard.measure.readback import Row
from spikeguard.ranks import rank_group as of_ranks
from spikeguard.ranks.agreement import Agreement
from spikeguard.ranks.layout import Topology
from spikeguard.ranks.rank_group import LEAST, Ties, World, join_world
from spikeguard.ranks.replicas import bits_of, compares_at, number_of, ranks_apart
from spikeguard.ranks.vote import (
    LARGEST,
    LOSS_SUM,
    LOSS_WEIGHT,
    Reduced,
    Vote,
    Voter,
    Word,
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


def number(parameters: list[Tensor]) -> float:
    return number_of({name: float(value) for name, value in bits_of(parameters).items()})


def weights() -> list[Tensor]:
    torch.manual_seed(0)
    odd = torch.randn(3, 5)  # fifteen words of four bytes
    return [torch.randn(8, 8), odd, torch.randn(7).bfloat16(), torch.randn(9)[1:], odd.T]


def test_equal_weights_have_equal_numbers_and_every_single_bit_counts() -> None:
    before = number(weights())
    assert number(weights()) == before
    assert before == int(before) > 0
    for place in range(4):
        for bit in range(16 if place == 2 else 32):
            changed = weights()
            kind, unit = (torch.int16, 16) if place == 2 else (torch.int32, 32)
            mask = 1 << bit
            mask -= 2**unit if bit == unit - 1 else 0  # the sign
            changed[place].view(kind).view(-1)[-1] ^= mask
            assert number(changed) != before, (place, bit)


@pytest.mark.parametrize(
    ("numbers", "apart"),
    [
        ([5.0, 5.0, 5.0], ()),
        ([5.0, 7.0, 5.0], (1,)),
        ([7.0, 5.0, 5.0], (0,)),
        ([5.0, 7.0], (1,)),  # nobody can tell which of two is right
        ([5.0, 7.0, 7.0, 5.0], (1, 2)),
    ],
)
def test_ranks_are_apart_from_the_most(numbers: list[float], apart: tuple[int, ...]) -> None:
    assert ranks_apart(numbers) == apart


def test_ranks_are_compared_with_those_alone_that_hold_the_same() -> None:
    """Of two that hold the one half, and three that hold the other."""
    same_as = [0, 1, 0, 1, 1]
    assert ranks_apart([5.0, 7.0, 5.0, 7.0, 7.0], same_as) == ()
    assert ranks_apart([5.0, 6.0, 5.0, 7.0, 7.0], same_as) == (1,)
    assert ranks_apart([5.0, 7.0, 6.0, 7.0, 5.0], same_as) == (2, 4)


def test_a_rank_is_waited_for_as_long_as_the_jobs_own_collectives_wait(tmp_path: Path) -> None:
    """One that saves or evaluates alone is no later here than the job itself allows."""
    assert join_world().timeout == LEAST
    for patience, expected in ((timedelta(minutes=7), timedelta(minutes=7)), (LEAST / 2, LEAST)):
        meeting = f"file://{tmp_path / str(patience.seconds)}"
        dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1, timeout=patience)
        try:
            assert join_world().timeout == expected
            assert join_world(5.0).timeout == timedelta(seconds=5)
        finally:
            dist.destroy_process_group()


def test_an_ending_waits_for_no_rank_as_long_as_a_step_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of hours' patience ends within `LEAST`, where a rank has ended before."""
    monkeypatch.setattr(of_ranks, "LEAST", timedelta(seconds=0.5))
    store = dist.FileStore(str(tmp_path / "store"), 2)  # type: ignore[attr-defined]
    patience = timedelta(hours=1)
    with ThreadPoolExecutor() as threads:
        groups: list[Any] = list(
            threads.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, patience), range(2))
        )
    world = World(0, 2, patience, Ties(groups[0]))
    agreement = Agreement[Row](world, Topology(2), compares=True)
    agreement.exchange(Word(0, False, ()), None)
    assert agreement.part() == []
    assert world.ties.broken
