"""Tokens that have worked in this process: their callers are not strangers who may be guessing.

Law: in memory and bounded; hashes alone are kept. It says whose bucket a call is counted in, never
who may do what.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from threading import Lock
from typing import Final

MOST: Final = 10_000  # secrets; the one that worked longest ago is forgotten


class KnownTokens:
    """Hashes of secrets that worked when they were last looked up."""

    def __init__(self, most: int = MOST) -> None:
        self._most, self._lock = most, Lock()
        self._hashes: OrderedDict[bytes, int | None] = OrderedDict()  # with the token behind each

    def __contains__(self, hashed: bytes) -> bool:
        return hashed in self._hashes

    def holder(self, hashed: bytes) -> Hashable:
        """The token that stands behind a secret, where that is known, else the secret's hash: one
        key for whoever holds both."""
        known = self._hashes.get(hashed)
        return hashed if known is None else known

    def note(self, hashed: Iterable[bytes], grant: int | None = None) -> None:
        """These work; the newest last. `grant`: the token that stands behind them."""
        with self._lock:
            for each in hashed:
                self._hashes[each] = grant
                self._hashes.move_to_end(each)
            while len(self._hashes) > self._most:
                self._hashes.popitem(last=False)

    def forget(self, hashed: bytes) -> None:
        """It does not work any more, or never did."""
        with self._lock:
            self._hashes.pop(hashed, None)
