"""What all ranks come to, from the numbers that each of them fills in."""

from __future__ import annotations

import math
from array import array
from datetime import timedelta
from typing import Any

import pytest
import torch

from spikeguard.loop.agreement import Agreement
from spikeguard.loop.vote import Ballot, Tally, Word
from spikeguard.measure.losses import LOSS_SUM, LOSS_WEIGHT
from spikeguard.measure.readback import Row
from spikeguard.topology.rank_group import World
from spikeguard.topology.replicas import HIGH, LOW


def row(loss: float, step: int = 9, weight: float = 1.0, **signals: float) -> Row:
    measured = {"loss": loss, LOSS_SUM: loss * weight, "grad_norm": 0.5, **signals}
    scalars = {name: torch.tensor(value) for name, value in measured.items()}
    return Row(step, 0, step, 1.0, None, None, {LOSS_WEIGHT: weight}, scalars)


def tally(rows: list[Row | None], word: Word = Word(), sharded: bool = False) -> Tally:  # noqa: B008
    """The sum of every rank's list, as rank 0 reads it."""
    lists = []
    for rank, own in enumerate(rows):
        ballot = Ballot(rank, len(rows), sharded)
        numbers = array("d", [7.0] * ballot.length)  # what an earlier step left
        ballot.fill(memoryview(numbers), word if rank == 0 else None, own)
        lists.append(numbers)
    return Tally(rows[0], [sum(column) for column in zip(*lists, strict=True)], sharded)


def values(found: Tally) -> dict[str, float]:
    assert found.row is not None
    return found.values(found.row.read(), replicated=True)


def test_every_rank_reads_what_rank_0_said() -> None:
    word = Word(3, True, ((20, 0), (40, 1)))
    assert tally([row(1.0), row(2.0), row(3.0)], word).word == word
    assert tally([None, None]).word == Word()


def test_a_loss_is_weighed_over_the_ranks_and_the_worst_is_told() -> None:
    told = values(tally([row(1.0, weight=300.0), row(4.0, weight=100.0)]))
    assert (told["loss"], told["loss_rank_max"]) == (1.75, 4.0)
    assert told["grad_norm"] == 0.5
    assert not told.keys() & {LOSS_SUM, LOSS_WEIGHT, LOW, HIGH, "replicas_apart"}


def test_the_loss_is_that_of_the_ranks_that_have_one() -> None:
    """Rank 0 of a pipeline computes none, and tells that of the last stage."""
    none = Row(9, 0, 9, 1.0, None, None, {}, {"grad_norm": torch.tensor(0.5)})
    told = values(tally([none, row(3.0, weight=2.0), none, row(1.0, weight=2.0)], sharded=True))
    assert (told["loss"], told["loss_rank_max"], told["grad_norm"]) == (2.0, 3.0, 0.5)


def test_a_loss_that_is_nan_on_one_rank_is_nan_for_all_and_the_worst_infinite() -> None:
    told = values(tally([row(1.0), row(math.nan)]))
    assert math.isnan(told["loss"])
    assert told["loss_rank_max"] == math.inf


def test_the_parts_of_a_norm_add_up_where_every_rank_has_one() -> None:
    told = values(tally([row(1.0, param_norm=3.0), row(1.0, param_norm=4.0)], sharded=True))
    assert told["param_norm"] == 5.0
    alone = values(tally([row(1.0, param_norm=3.0), row(1.0)], sharded=True))
    assert "param_norm" not in alone


def test_the_largest_snapshot_is_known_once_every_rank_has_taken_one() -> None:
    def largest(*sizes: int) -> int:
        lists = []
        for rank, size in enumerate(sizes):
            ballot = Ballot(rank, len(sizes), sharded=False)
            ballot.snapshot_bytes = size
            numbers = array("d", [7.0] * ballot.length)
            ballot.fill(memoryview(numbers), None, row(1.0) if rank else None)
            lists.append(numbers)
        return Tally(None, [sum(c) for c in zip(*lists, strict=True)], False).snapshot_bytes

    assert largest(0, 0, 0) == largest(300, 0, 200) == 0
    assert largest(300, 2**53, 200) == 2**53


def bits(*low: float, step: int = 9) -> list[Row | None]:
    return [row(1.0, step, **{LOW: number, HIGH: 2.0**23}) for number in low]


def test_ranks_with_other_weights_are_told_of_the_step_that_was_compared() -> None:
    told = values(tally(bits(5.0, 5.0, 6.0, 5.0)))
    assert (told["replicas_apart"], told["replica_apart"]) == (1.0, 2.0)
    same = values(tally(bits(5.0, 5.0)))
    assert same["replicas_apart"] == 0.0
    assert "replica_apart" not in same


@pytest.mark.parametrize("rows", [[None, *bits(6.0)], bits(5.0, step=8) + bits(6.0)])
def test_a_rank_that_fell_out_of_step_is_not_compared(rows: list[Row | None]) -> None:
    assert tally(rows).apart is None


def agreement(**known: Any) -> Agreement:
    return Agreement(World(0, 1, timedelta(seconds=1)), 2, **known)


def test_ranks_that_differ_from_the_beginning_are_no_replicas_unless_they_have_to_be() -> None:
    """Pipeline stages hold other weights; under DDP that would be a fault."""
    stages = agreement()
    assert stages._apart(tally(bits(5.0, 6.0))) is None
    assert not stages.compares
    assert agreement(replicated=True)._apart(tally(bits(5.0, 6.0))) == (1,)
    later = agreement()
    assert later._apart(tally(bits(5.0, 5.0))) == ()
    assert later._apart(tally(bits(5.0, 6.0))) == (1,)
    assert not agreement(sharded=True).compares
