"""Data that is a function of an index, as a loader that goes back and skips exactly.

`guard.batches(by_position(fn))`: item `i` is `fn(i)`, whatever happened before. nanoGPT's
`get_batch` draws random numbers instead of taking an index: with `seed` the numbers that `fn` draws
depend on seed and index alone.
Items are made when they are asked for, in the thread that asks. With `seed`, the job's
own random numbers stay as they are.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch

from spikeguard.state.random_numbers import random_state, restore_random_state

Item = TypeVar("Item")


class ByPosition(Generic[Item]):
    """A loader of `fn(0)`, `fn(1)`, … Made by `by_position`."""

    def __init__(
        self, fn: Callable[[int], Item], seed: int | None = None, length: int | None = None
    ) -> None:
        self._fn, self._seed, self._length = fn, seed, length
        self._index = 0  # of the next item
        self.micro_batches = 1  # items of a position; `guard.batches()` says how many

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._length is not None and self._index >= self._length:
            raise StopIteration
        item = self._made(self._index)
        self._index += 1
        return item

    def skip_to(self, position: int) -> None:
        """Go on with the first item of `position`; nothing is made of what lies before."""
        self._index = position * self.micro_batches

    def state_dict(self) -> dict[str, int]:
        """The index of the next item."""
        return {"index": self._index}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on with that index."""
        self._index = int(state["index"])

    def _made(self, index: int) -> Item:
        if self._seed is None:
            return self._fn(index)
        numbers = random_state()
        try:
            _seed_all(f"{self._seed}/{index}")
            return self._fn(index)
        finally:
            restore_random_state(numbers)


def by_position(
    fn: Callable[[int], Item], *, seed: int | None = None, length: int | None = None
) -> ByPosition[Item]:
    """A loader for `guard.batches()` whose item `i` is `fn(i)`: restarts and skips are exact.

    `i` counts this rank's items from 0: with `micro_batches` items a step the first of a position
    is `position * micro_batches`. `fn` has to return the same for the same index. Where it draws
    from the global random numbers of torch, numpy or python instead, give `seed`: they are seeded
    by it and the index for the call, and put back after it. Each rank that reads other data needs
    another `fn` or another `seed`. `length`: items of the one pass; None: it never ends.
    """
    return ByPosition(fn, seed, length)


def _seed_all(text: str) -> None:
    """Seed the generators that `random_state` keeps."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
    random.seed(number)
    torch.manual_seed(number)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number & 0xFFFFFFFF)
