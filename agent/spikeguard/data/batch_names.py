"""What lay in a batch that was left out, in the user's words, cut to what a record holds.

Law: pure. Only text and whole numbers are names; whatever is left away is counted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from spikeguard_protocol import MAX_NAME, MAX_NAMES

NameBatch = Callable[[Any], Any]  # an item of the loader -> its name or names
LOOKED_AT = 10_000  # names of one item; the rest of what may be endless is not even counted


@dataclass(slots=True)
class Names:
    """The names of one position, in the order of its items."""

    kept: list[str] = field(default_factory=list)
    cut: int = 0  # left away, or shortened

    def add(self, given: Any) -> None:
        """Take up what one item is called; raise TypeError for what cannot name anything."""
        for name in islice(_each(given), LOOKED_AT):
            fits = len(self.kept) < MAX_NAMES
            self.cut += not fits or len(name) > MAX_NAME
            if fits:
                self.kept.append(name[:MAX_NAME])


def _each(given: Any) -> Iterator[str]:
    if isinstance(given, str | int):
        return iter((str(given),))
    if isinstance(given, bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"a name is a str or several of them, not {type(given).__name__}")
    return map(_name, given)


def _name(one: Any) -> str:
    return one if isinstance(one, str) else str(operator.index(one))
