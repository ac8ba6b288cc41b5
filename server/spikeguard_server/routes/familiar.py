"""Secrets that have worked here: whoever brings one is told apart from who may be guessing.

Law: in memory and bounded; hashes alone are kept. It says whose bucket a call is counted in, never
who may do what.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Final

MOST: Final = 10_000  # secrets; the one that worked longest ago is forgotten


class Familiar:
    """Hashes of secrets that worked when they were last looked up."""

    def __init__(self, most: int = MOST) -> None:
        self._most, self._lock = most, Lock()
        self._hashes: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, hashed: bytes) -> bool:
        return hashed in self._hashes

    def note(self, hashed: Iterable[bytes]) -> None:
        """These work; the newest last."""
        with self._lock:
            for each in hashed:
                self._hashes[each] = None
                self._hashes.move_to_end(each)
            while len(self._hashes) > self._most:
                self._hashes.popitem(last=False)

    def forget(self, hashed: bytes) -> None:
        """It does not work any more, or never did."""
        with self._lock:
            self._hashes.pop(hashed, None)
