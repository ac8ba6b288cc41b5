"""Counts and times every request.

Law: plain ASGI. The label is the call's template, never the path that was asked for.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spikeguard_server.metrics import Metrics

GONE: Final = 499  # the status of who hung up before there was anything to answer
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})


class RequestMetrics:
    """Tells `metrics` of every request that comes by."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "unmatched")
            count_request(self._metrics, method, route, status, perf_counter() - began)


def count_request(metrics: Metrics, method: str, route: str, status: int, seconds: float) -> None:
    """Count and time one answered request."""
    metrics.requests.labels(method, route, str(status)).inc()
    metrics.latency.labels(method, route).observe(seconds)
    if route == "/v1/messages":
        metrics.messages.labels(_RESULTS.get(status, "failed")).inc()


_RESULTS = {
    200: "stored",
    400: "malformed",
    401: "refused",
    403: "refused",
    409: "gap",
    413: "too_large",
    422: "invalid",
    429: "busy",
    GONE: "gone",
    503: "busy",
}
