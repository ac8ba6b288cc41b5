"""Equal weights have equal sums of bits, and any single change shows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spikeguard.ranks.replicas import bits_of, number_of, ranks_apart


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
