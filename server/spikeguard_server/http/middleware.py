"""What every request goes through and every answer carries: one plain ASGI layer around the rest.

A request has an id, in its answer's `X-Request-Id` and in every record that is logged for it: the
caller's own where it is 1 to 128 visible ASCII characters, otherwise one is made. Its body is
counted as it streams in and never kept beyond its limit. It is counted and timed by the call's
template, never by the path that was asked for. One token makes so many calls a second, one bucket
each, in memory, each process for itself; messages are not counted, `ingest.message_pool` bounds
them. Calls without a token are bounded by address in the proxy (`deploy/balancer/haproxy.cfg`).
"""

from __future__ import annotations

import math
import re
from asyncio import Semaphore
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from time import monotonic, perf_counter
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spikeguard_protocol import MAX_BYTES
from spikeguard_server.errors import Busy, TooLarge
from spikeguard_server.identity.permissions import hash_secret
from spikeguard_server.log_format import add_context
from spikeguard_server.metrics import Metrics
from spikeguard_server.settings import Settings

REQUEST_ID: Final = "X-Request-Id"
_REQUEST_ID: Final = REQUEST_ID.lower().encode()
_ID: Final = re.compile(r"[!-~]{1,128}")
PEER: Final = "spikeguard.peer"  # who opened the connection, before a proxy's word about the caller

SMALL_BYTES: Final = 64 * 1024
LIMITS: Final[Mapping[str, int]] = {
    "/v1/messages": MAX_BYTES,
    "/v1/policy": 256 * 1024,
}

CONTENT_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
)
HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}

BURST_S: Final = 3.0  # a bucket holds so many seconds' worth of calls
MAX_CALLERS: Final = 10_000  # remembered; the one that called longest ago is forgotten
FREE: Final = ("/healthz", "/readyz", "/v1/messages")  # messages take turns of their own
COOKIE: Final = b"spikeguard_session="

GONE: Final = 499  # the status of who hung up before there was anything to answer
_METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})


def careful_headers(settings: Settings) -> Mapping[str, str]:
    """The headers of a careful web service, for every answer that does not set its own. A login may
    lead on to the dashboard, and to nowhere else."""
    parts = urlsplit(settings.dashboard_url)
    dashboard = f" {parts.scheme}://{parts.netloc}" if parts.netloc else ""
    https = settings.public_url.startswith("https://")
    extra = {"Strict-Transport-Security": "max-age=31536000"} if https else {}
    return {**HEADERS, "Content-Security-Policy": CONTENT_POLICY + dashboard, **extra}


@dataclass(slots=True)
class Rates:
    """Who called how often lately."""

    per_s: float
    _left: OrderedDict[bytes, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, caller: bytes, now: float) -> None:
        """Count one call; raise `Busy` where it comes too soon."""
        most = self.per_s * BURST_S
        left, since = self._left.pop(caller, (most, now))
        left = min(most, left + (now - since) * self.per_s)
        allowed = left >= 1.0
        self._left[caller] = (left - 1.0 if allowed else left, now)
        if len(self._left) > MAX_CALLERS:
            self._left.popitem(last=False)
        if not allowed:
            raise Busy(
                f"One token may call {self.per_s:g} times a second",
                "Wait, then send it again, and call less often",
                retry_after_s=max(1, math.ceil((1.0 - left) / self.per_s)),
                limit=self.per_s,
            )


class RequestMiddleware:
    """The layer. `refuse` writes the answer that an error becomes.

    The context of the log is not put back: a request has a task, and so a context, of its own, and
    what the web server logs of its failure belongs to it too.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        settings: Settings,
        refuse: Callable[[Request, Exception], Response],
    ) -> None:
        self._app, self._metrics, self._refuse = app, metrics, refuse
        self._rates, headers = Rates(settings.requests_per_s), careful_headers(settings)
        self._headers = [(n.lower().encode(), v.encode("latin-1")) for n, v in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _ID.fullmatch(given) else token_hex(8)
        add_context(request_id=request_id)
        if scope.get("client"):
            scope[PEER] = scope["client"][0]
        path, method = scope["path"], scope["method"]
        limit, size, began, status = LIMITS.get(path, SMALL_BYTES), 0, perf_counter(), 0

        async def receive_within_limit() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise TooLarge(limit)
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, own = message["status"], message["headers"]
                names = {name for name, _ in own}
                careful = [(_REQUEST_ID, request_id.encode()), *self._headers]
                message["headers"] = [*own, *(pair for pair in careful if pair[0] not in names)]
            await send(message)

        try:
            if path not in FREE and (caller := caller_of(scope)) is not None:
                self._rates.take(caller, monotonic())
            await self._app(scope, receive_within_limit, send_with_headers)
        except Exception as error:
            if status:  # an answer has begun
                raise
            await self._refuse(Request(scope), error)(scope, receive, send_with_headers)
        finally:
            method = method if method in _METHODS else "other"
            route, took_s = getattr(scope.get("route"), "path", "unmatched"), perf_counter() - began
            self._metrics.requests.labels(method, route, str(status or 500)).inc()
            self._metrics.latency.labels(method, route).observe(took_s)


class TokenTurns:
    """Lets `at_once` calls of each token through; its others wait. Threads are few: without a share
    for each, slow reads of one token would hold them all. Of the event loop's thread."""

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
