"""Limits how many calls of one token are answered at once; others wait here.

Invariants: lives in the event loop's thread. The threads that answer calls have one queue, and
whoever fills it makes everybody wait: so a token, with all sessions that it opened, holds half of
them at most, and so does an address with its calls that need no token. What waits long by design
(events, orders, tests of channels, an identity provider) is not counted; what it asks of the
database is, with what every call asks before it is let in.
"""

from __future__ import annotations

from asyncio import Semaphore, timeout
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from spikeguard_server.errors import Busy

MOST_WAITING: Final = 200  # of one grant
UNCOUNTED: Final = frozenset(
    {
        "/v1/runs/{project}/{name}/orders",
        "/v1/channels/{project}/{channel}/test",
        "/login/oidc",
        "/login/oidc/callback",
    }
)


@dataclass(slots=True)
class _Lane:
    turns: Semaphore
    count: int = 0  # calls that are answered or wait


class Calls:
    """Lets `at_once` calls of each grant through, and so many wait."""

    def __init__(self, at_once: int, waiting: int = MOST_WAITING) -> None:
        self._at_once, self._most = at_once, at_once + waiting
        self._lanes: dict[Hashable, _Lane] = {}

    @asynccontextmanager
    async def one_of(self, grant: Hashable) -> AsyncIterator[None]:
        """A call of `grant` (or of an address) is answered; raise `Busy` where too many wait."""
        lane = self._lanes.setdefault(grant, _Lane(Semaphore(self._at_once)))
        if lane.count >= self._most:
            raise Busy(
                f"{lane.count} calls of yours are being answered or wait already",
                "Ask for less at once, and wait for the answers", limit=self._most,
            )  # fmt: skip
        lane.count += 1
        try:
            async with lane.turns:
                yield
        finally:
            lane.count -= 1
            if not lane.count:
                del self._lanes[grant]


class OneAtATime:
    """Lets through one call of all: what computes for seconds. Whoever waits holds no thread, and
    none of a grant or project has two of the places in the queue. Its second call waits behind the
    first where `patient`; else it is refused."""

    def __init__(self, wait_s: float, busy: Busy, *, patient: bool = False) -> None:
        self._wait_s, self._busy, self._patient = wait_s, busy, patient
        self._turn = Semaphore(1)
        self._lanes: dict[Hashable, _Lane] = {}

    @asynccontextmanager
    async def one_of(self, *keys: Hashable) -> AsyncIterator[None]:
        """A call is answered that is one of each of `keys`, the narrowest first; raise `Busy` where
        its turn does not come."""
        lanes = [self._lanes.setdefault(key, _Lane(Semaphore(1))) for key in keys]
        if any(lane.count for lane in lanes) and not self._patient:
            raise self._busy
        for lane in lanes:
            lane.count += 1
        try:
            async with AsyncExitStack() as held:
                await self._acquire(held, [*(lane.turns for lane in lanes), self._turn])
                yield
        finally:
            for key, lane in zip(keys, lanes, strict=True):
                lane.count -= 1
                if not lane.count:
                    del self._lanes[key]

    async def _acquire(self, held: AsyncExitStack, turns: Sequence[Semaphore]) -> None:
        try:
            async with timeout(self._wait_s):
                for turn in turns:
                    await held.enter_async_context(turn)
        except TimeoutError:
            raise self._busy from None
