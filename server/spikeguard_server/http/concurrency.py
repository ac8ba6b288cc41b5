"""How many threads the calls of one token or session hold at once; its other calls wait for these.

The threads that answer calls are few: without a share for each token, slow reads of one would hold
them all. Lives in the event loop's thread. What waits long by design (orders) takes its turn only
while it asks the database.
"""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class TokenTurns:
    """Lets `at_once` calls of each token through."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._turns: WeakValueDictionary[bytes, Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, caller: bytes) -> AsyncIterator[None]:
        """A call is answered of whoever holds the secret of this hash; empty: of nobody known."""
        turns = self._turns.setdefault(caller, Semaphore(self._at_once))
        async with turns:
            yield
