"""How large a request may be, and the headers that every answer carries.

Law: plain ASGI; a body is counted as it streams in and never kept beyond its limit.
"""

from __future__ import annotations

from asyncio import timeout
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spikeguard_protocol import MAX_BYTES
from spikeguard_protocol.cookies import plain_cookies
from spikeguard_server.errors import ServiceError, TooLarge, UnsupportedMediaType

SMALL_BYTES: Final = 64 * 1024
LIMITS: Final[Mapping[str, int]] = {
    "/v1/messages": MAX_BYTES,
    "/v1/policy": 256 * 1024,
    "/v1/policy/document": 256 * 1024,
}
READ_ON: Final = 2 * MAX_BYTES  # of a body that was answered before it was there
READ_ON_S: Final = 5.0
_BODY: Final = (b"content-length", b"transfer-encoding")

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


class PlainCookies:
    """Leaves out cookies that none of ours can be, before anybody reads them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "headers" in scope:
            scope["headers"] = plain_cookies(scope["headers"])
        await self._app(scope, receive, send)


class PlainForms:
    """Refuses bodies in several parts: no form here has a file, and each part would be decoded by
    whatever codec its sender names, which can take a second for 60 kB."""

    def __init__(self, app: ASGIApp, refuse: Callable[[Request, ServiceError], Response]) -> None:
        self._app, self._refuse = app, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(_in_parts(name, value) for name, value in scope.get("headers", ())):
            await self._refuse(Request(scope), UnsupportedMediaType())(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _in_parts(name: bytes, value: bytes) -> bool:
    return name == b"content-type" and b"multipart" in value.lower()


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


class WholeBodies:
    """Reads on what an answer did not wait for, so that its sender hears the answer; where there is
    more than `READ_ON` or it takes longer than `READ_ON_S`, the connection closes behind it.

    uvicorn would read it for ever, at the cost of everybody's event loop.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not any(name in _BODY for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        whole = False

        async def noting() -> Message:
            nonlocal whole
            message = await receive()
            whole = not message.get("more_body")
            return message

        async def read_on() -> None:
            size = 0
            while not whole and size <= READ_ON:
                size += len((await noting()).get("body", b""))

        async def send_behind_it(message: Message) -> None:
            if message["type"] == "http.response.start" and not whole:
                with suppress(TimeoutError):
                    async with timeout(READ_ON_S):
                        await read_on()
                if not whole:
                    MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, noting, send_behind_it)
