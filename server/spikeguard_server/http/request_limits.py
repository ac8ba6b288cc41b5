"""How large a request may be, and the headers that every answer carries.

Law: plain ASGI; a body is counted as it streams in and never kept beyond its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spikeguard_protocol import MAX_BYTES
from spikeguard_server.errors import TooLarge

SMALL_BYTES: Final = 64 * 1024
LIMITS: Final[Mapping[str, int]] = {
    "/v1/messages": MAX_BYTES,
    "/v1/policy": 256 * 1024,
    "/v1/policy/document": 256 * 1024,
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


def careful_headers(*, https: bool, dashboard_url: str) -> Mapping[str, str]:
    """The headers of every answer. A login may lead on to the dashboard, and to nowhere else."""
    policy = f"{CONTENT_POLICY} {dashboard_url}".rstrip()
    extra = {"Strict-Transport-Security": "max-age=31536000"} if https else {}
    return {**HEADERS, "Content-Security-Policy": policy, **extra}


class CarefulAnswers:
    """Adds the headers of a careful web service to answers that do not set their own."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self._app, self._headers = app, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class BodyLimit:
    """Refuses bodies over the limit of their path with `TooLarge`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = Counted(receive, LIMITS.get(scope["path"], SMALL_BYTES))
        await self._app(scope, receive, send)


class Counted:
    """A `receive` that raises `TooLarge` once more than `limit` bytes have come."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit, self._seen = receive, limit, 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > self._limit:
            raise TooLarge(self._limit)
        return message
