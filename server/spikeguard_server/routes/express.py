"""The one call that comes hundreds of times a second, answered before the framework is asked.

Law: plain ASGI; what it takes, refuses, counts and answers is what every call's way would make of
it: the body's limit, the token, the errors' one shape, the careful headers, the metrics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import perf_counter
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spikeguard_server.metrics import Metrics
from spikeguard_server.routes.limits import LIMITS, Counted
from spikeguard_server.routes.measured import note

PATH: Final = "/v1/messages"
HeaderList = list[tuple[bytes, bytes]]
Take = Callable[[str | None, bytes, str], Awaitable[tuple[bytes, Mapping[str, str]]]]


class Express:
    """Hands messages to `take` (secret, body, peer's host) and everything else to the app."""

    def __init__(
        self,
        app: ASGIApp,
        take: Take,
        refuse: Callable[[Exception], Response],
        headers: Mapping[str, str],
        metrics: Metrics,
    ) -> None:
        self._app, self._take, self._refuse, self._metrics = app, take, refuse, metrics
        self._headers = [(b"content-type", b"application/json"), *_encoded(headers.items())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 500
        try:
            body = await _body(Counted(receive, LIMITS[PATH]))
            if body is None:  # nobody is there any more
                return
            answer, extra = await self._take(_secret(scope), body, _host(scope))
            del body
        except Exception as error:
            refusal = self._refuse(error)
            status = refusal.status_code
            await refusal(scope, receive, send)
        else:
            status = 200
            await _answer(send, answer, self._headers + _encoded(extra.items()))
        finally:
            note(self._metrics, "POST", PATH, status, perf_counter() - began)


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None if the connection ended before it did."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return bytes(message.get("body", b""))
    parts: list[bytes] = []
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    return None


async def _answer(send: Send, body: bytes, headers: HeaderList) -> None:
    start: Message = {
        "type": "http.response.start",
        "status": 200,
        "headers": [*headers, (b"content-length", b"%d" % len(body))],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _secret(scope: Scope) -> str | None:
    """The token that the message came with."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, secret = value.decode("latin-1").partition(" ")
            return secret.strip() if scheme.lower() == "bearer" else None
    return None


def _host(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _encoded(headers: Iterable[tuple[str, str]]) -> HeaderList:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
