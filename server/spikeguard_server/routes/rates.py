"""How often one token may call: a bucket of its own that fills again as time passes.

Law: plain ASGI, before anything is looked up, in memory and bounded; each process counts for
itself. Messages are not counted here, `ingest.turns` bounds them by token and run, and neither are
the questions of load balancers. Secrets are kept as hashes alone.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spikeguard_server.access import hash_secret
from spikeguard_server.errors import Busy, ServiceError

BURST_S: Final = 3.0  # a bucket holds so many seconds' worth of calls
MAX_CALLERS: Final = 10_000  # remembered; the one that called longest ago is forgotten
FREE: Final = ("/healthz", "/readyz")
COOKIE: Final = b"spikeguard_session="


@dataclass(slots=True)
class Rates:
    """Who called how often lately."""

    per_s: float
    _left: OrderedDict[Hashable, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, caller: Hashable, now: float) -> float:
        """Count one call of `caller`; seconds until it may be made, 0 if it may be made now."""
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
        if scope["type"] != "http" or scope["path"] in FREE:
            await self._app(scope, receive, send)
            return
        wait_s = self._rates.take(caller_of(scope), monotonic())
        if wait_s == 0.0:
            await self._app(scope, receive, send)
            return
        per_s = self._rates.per_s
        told = Busy(
            f"One token may call {per_s:g} times a second",
            "Wait, then send it again, and call less often",
            retry_after_s=max(1, math.ceil(wait_s)),
            limit=per_s,
        )
        await self._refuse(Request(scope), told)(scope, receive, send)


def caller_of(scope: Scope) -> Hashable:
    """Whose bucket a call is taken from: the token's, else the address's.

    Jobs share a token and each waits at its own run's orders: there every run has a bucket.
    """
    place = scope["path"] if scope["path"].endswith("/orders") else ""
    if secret := _secret(scope):
        return hash_secret(secret), place
    return (scope["client"] or ("",))[0]


def _secret(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return str(value.partition(b" ")[2].strip().decode("latin-1"))
        if name == b"cookie" and COOKIE in value:
            return str(value.partition(COOKIE)[2].partition(b";")[0].decode("latin-1"))
    return ""
