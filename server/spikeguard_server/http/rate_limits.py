"""Rate limits: a token bucket for each caller.

Law: plain ASGI, before anything is looked up, in memory and bounded; each process counts for
itself. A token has a bucket once it has worked; until then its calls are its address's, so that who
guesses has one for all guesses, and takes nothing from those whose tokens work there. Sessions have
one each and, with the token that opened them, a larger one together. Messages are not counted here,
`ingest.turns` bounds them by token and run, and neither are the questions of load balancers.
Secrets are kept as hashes alone.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from time import monotonic
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.errors import Busy, ServiceError
from spikeguard_server.http.known_tokens import KnownTokens
from spikeguard_server.identity.permissions import hash_cookie, hash_secret

LONGEST_HOST: Final = 64  # characters that are remembered of what is no address
BURST_S: Final = 3.0  # a bucket holds so many seconds' worth of calls
MAX_CALLERS: Final = 10_000  # remembered; the one that called longest ago is forgotten
FREE: Final = ("/healthz", "/readyz", "/v1/messages")  # messages take turns of their own
COOKIE: Final = b"spikeguard_session="
_NAME: Final = NAME_PATTERN.pattern  # of bounded length: paths of orders are remembered
_ORDERS: Final = re.compile(f"/v1/runs/{_NAME}/{_NAME}/orders")
SESSIONS: Final = 5.0  # times the rate: what one token may call with all of its sessions
RUNS: Final = 10.0  # times the rate: what one token may ask for the orders of all its runs


@dataclass(slots=True)
class Rates:
    """Who called how often lately."""

    per_s: float
    _left: OrderedDict[Hashable, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, caller: Hashable, now: float, times: float = 1.0) -> float:
        """Count one call of `caller`, who may make so many times the rate; seconds until it may be
        made, 0 if it may be made now."""
        per_s = self.per_s * times
        most = per_s * BURST_S
        left, since = self._left.pop(caller, (most, now))
        left = min(most, left + (now - since) * per_s)
        allowed = left >= 1.0
        self._left[caller] = (left - 1.0 if allowed else left, now)
        if len(self._left) > MAX_CALLERS:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / per_s

    def check(self, callers: Mapping[Hashable, float], now: float) -> None:
        """Count one call in each of these buckets, of so many times the rate; raise `Busy` where
        one is empty."""
        for caller, times in callers.items():
            if wait_s := self.take(caller, now, times):
                raise Busy(
                    f"One token may call {self.per_s:g} times a second, and so may all those of "
                    "one address together that have not worked here yet",
                    "Wait, then send it again, and call less often",
                    retry_after_s=max(1, math.ceil(wait_s)),
                    limit=self.per_s,
                )


class RateLimit:
    """Answers 429 to who calls too often."""

    def __init__(
        self,
        app: ASGIApp,
        rates: Rates,
        known_tokens: KnownTokens,
        refuse: Callable[[Request, ServiceError], Response],
    ) -> None:
        self._app, self._rates, self._known_tokens, self._refuse = app, rates, known_tokens, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in FREE:
            await self._app(scope, receive, send)
            return
        try:
            self._rates.check(callers_of(scope, self._known_tokens), monotonic())
        except Busy as told:
            await self._refuse(Request(scope), told)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def callers_of(scope: Scope, known_tokens: KnownTokens) -> Mapping[Hashable, float]:
    """Which buckets a call is taken from, and how large they are: the token's once it has worked,
    else the address's.

    Jobs share a token and each waits at its own run's orders: there every run has a bucket, and all
    of them a larger one.
    """
    hashed = _hashed(scope)
    if hashed not in known_tokens:
        return {address_of((scope["client"] or ("",))[0]): 1.0}
    if _ORDERS.fullmatch(scope["path"]):
        return {(hashed, scope["path"]): 1.0, (known_tokens.holder(hashed), "orders"): RUNS}
    return {hashed: 1.0, **_shared_bucket(hashed, known_tokens)}


def _shared_bucket(hashed: bytes, known_tokens: KnownTokens) -> Mapping[Hashable, float]:
    """That of a token with all the sessions that it opened, of which it may open any number."""
    holder = known_tokens.holder(hashed)
    return {} if holder == hashed else {("sessions", holder): SESSIONS}


def address_of(host: str) -> str:
    """Whose address it is: of IPv6 the network, of which one machine has every address. A proxy may
    call its client anything; that is a caller too."""
    try:
        address = ip_address(host)
    except ValueError:
        return host[:LONGEST_HOST]
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((int(address), 64), strict=False))


def _hashed(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return hash_secret(str(value.partition(b" ")[2].strip().decode("latin-1")))
        if name == b"cookie" and COOKIE in value:
            secret = value.partition(COOKIE)[2].partition(b";")[0]
            return hash_cookie(str(secret.decode("latin-1")))
    return hash_secret("")
