"""The loader's newest items, kept for a while so that they can be named if somebody asks.

Law: references, nothing is copied or looked into but for its size. Bounded in positions and bytes;
the oldest go first. An item that the loop changes in place is named as it is then.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

BYTES = 32 * 2**20  # of tensors and arrays in the items
LOOKED_AT = 1_000  # things in one of them
DEPTH = 3  # of containers within containers


class KeptItems:
    """Items by position, in the order in which they were handed to the loop."""

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._kept: deque[tuple[int, Any, int]] = deque()
        self.bytes = 0

    def add(self, position: int, item: Any) -> None:
        """The loop gets `item`."""
        size = bytes_of(item)
        self._kept.append((position, item, size))
        self.bytes += size
        while self._kept and (
            self.bytes > BYTES or abs(position - self._kept[0][0]) > self._positions
        ):
            self.bytes -= self._kept.popleft()[2]

    def clear(self) -> None:
        """The run was taken back: positions come round again."""
        self._kept.clear()
        self.bytes = 0

    def of(self, position: int) -> list[Any]:
        """What was handed out of that position and is here still."""
        return [item for at, item, _ in tuple(self._kept) if at == position]


def bytes_of(item: Any, depth: int = DEPTH) -> int:
    """About what it holds in memory."""
    size = getattr(item, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(item, str | bytes) or depth == 0:
        return sys.getsizeof(item)
    inside: Any = ()
    if isinstance(item, Mapping):
        inside = item.values()
    elif isinstance(item, list | tuple):
        inside = item
    elif hasattr(item, "__dict__") or hasattr(item, "__slots__"):
        inside = [getattr(item, name, None) for name in _fields(item)]
    known = list(inside)
    looked = known[:LOOKED_AT]
    own = sum(bytes_of(each, depth - 1) for each in looked)
    return sys.getsizeof(item, 0) + own * len(known) // max(1, len(looked))


def _fields(item: Any) -> list[str]:
    return [*getattr(item, "__dict__", ()), *getattr(type(item), "__slots__", ())]
