"""What one token or session may take: calls a second, and threads that answer them.

One token bucket each: plain ASGI, before anything is looked up; in memory, bounded, each process
for itself. The threads are few: without a share for each, slow reads of one token would hold them
all. Messages are not counted here, `ingest.message_pool` bounds them. Calls without a token are
bounded by address in the proxy (`deploy/balancer/haproxy.cfg`). Secrets are kept as hashes alone.
"""

from __future__ import annotations

import math
from asyncio import Semaphore
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spikeguard_server.errors import Busy, ServiceError
from spikeguard_server.identity.permissions import hash_secret

BURST_S: Final = 3.0  # a bucket holds so many seconds' worth of calls
MAX_CALLERS: Final = 10_000  # remembered; the one that called longest ago is forgotten
FREE: Final = ("/healthz", "/readyz", "/v1/messages")  # messages take turns of their own
COOKIE: Final = b"spikeguard_session="


@dataclass(slots=True)
class Rates:
    """Who called how often lately."""

    per_s: float
    _left: OrderedDict[bytes, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, caller: bytes, now: float) -> float:
        """Count one call; seconds until it may be made, 0 if it may be made now."""
        most = self.per_s * BURST_S
        left, since = self._left.pop(caller, (most, now))
        left = min(most, left + (now - since) * self.per_s)
        allowed = left >= 1.0
        self._left[caller] = (left - 1.0 if allowed else left, now)
        if len(self._left) > MAX_CALLERS:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / self.per_s


class RateLimit:
    """Answers 429 to who calls too often."""

    def __init__(
        self, app: ASGIApp, rates: Rates, refuse: Callable[[Request, ServiceError], Response]
    ) -> None:
        self._app, self._rates, self._refuse = app, rates, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limited = scope["type"] == "http" and scope["path"] not in FREE
        caller = caller_of(scope) if limited else None
        wait_s = self._rates.take(caller, monotonic()) if caller is not None else 0.0
        if not wait_s:
            await self._app(scope, receive, send)
            return
        refusal = Busy(
            f"One token may call {self._rates.per_s:g} times a second",
            "Wait, then send it again, and call less often",
            retry_after_s=max(1, math.ceil(wait_s)),
            limit=self._rates.per_s,
        )
        await self._refuse(Request(scope), refusal)(scope, receive, send)


class TokenTurns:
    """Lets `at_once` calls of each token through; its others wait. Of the event loop's thread."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._turns: WeakValueDictionary[bytes, Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, caller: bytes) -> AsyncIterator[None]:
        """A call is answered of whoever holds the secret of this hash; empty: of nobody known."""
        turns = self._turns.setdefault(caller, Semaphore(self._at_once))
        async with turns:
            yield


def caller_of(scope: Scope) -> bytes | None:
    """The hash of the secret that a call brings; None where it brings none."""
    for name, value in scope["headers"]:
        if name == b"authorization" or (name == b"cookie" and COOKIE in value):
            secret = value.partition(COOKIE)[2].partition(b";")[0] if name == b"cookie" else value
            return hash_secret(secret.decode("latin-1"))
    return None
