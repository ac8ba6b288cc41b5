"""`POST /v1/messages`, hundreds of times a second, answered before the framework is asked.

Law: plain ASGI; what it takes, refuses, counts and answers is what every call's way would make of
it: the token, the body's limit, the errors' one shape, the careful headers, the metrics. Nothing is
read of who may not send, and no more at once than `MAX_INFLOW`, which the tokens share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spikeguard_server.errors import Busy
from spikeguard_server.http.request_limits import LIMITS, Counted
from spikeguard_server.http.request_metrics import GONE, count_request
from spikeguard_server.ingest.quotas import SharedQuota
from spikeguard_server.metrics import Metrics

PATH: Final = "/v1/messages"
MAX_INFLOW: Final = 64 * 2**20  # bytes of all bodies of which a part is still to come
BODY_S: Final = 60.0  # from the first part of a body to the last
HeaderList = list[tuple[bytes, bytes]]


class MessageEndpoint(Protocol):
    """Who may send, and what becomes of it."""

    async def admit(self, secret: str | None) -> bytes:
        """The hash of a secret that may send; raises `ServiceError`."""

    async def take(self, bearer: bytes, body: bytes, host: str) -> tuple[bytes, Mapping[str, str]]:
        """The answer's body and headers; raises `ServiceError`, `ProtocolError`."""


class IngestMiddleware:
    """Hands messages to `endpoint` and everything else to the app."""

    def __init__(
        self,
        app: ASGIApp,
        endpoint: MessageEndpoint,
        refuse: Callable[[Exception], Response],
        headers: Mapping[str, str],
        metrics: Metrics,
    ) -> None:
        self._app, self._endpoint, self._refuse, self._metrics = app, endpoint, refuse, metrics
        self._inflow = SharedQuota(MAX_INFLOW, "bytes of messages are on their way")
        self._headers = [(b"content-type", b"application/json"), *_encoded(headers.items())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 500
        try:
            bearer = await self._endpoint.admit(_secret(scope))
            body = await _body(Counted(receive, LIMITS[PATH]), self._inflow, bearer)
            if body is None:  # nobody is there any more
                status = GONE
                return
            answer, extra = await self._endpoint.take(bearer, body, _host(scope))
            del body
        except Exception as error:
            refusal = self._refuse(error)
            status = refusal.status_code
            await refusal(scope, receive, send)
        else:
            status = 200
            await _answer(send, answer, self._headers + _encoded(extra.items()))
        finally:
            count_request(self._metrics, "POST", PATH, status, perf_counter() - began)


async def _body(receive: Receive, inflow: SharedQuota, bearer: bytes) -> bytes | None:
    """The whole body; None if the connection ended before it did."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return bytes(message.get("body", b""))
    try:
        async with asyncio.timeout(BODY_S):
            return await _rest(message, receive, inflow, bearer)
    except TimeoutError:
        raise Busy(
            f"The body did not come within {BODY_S:g} s", "Send it again", limit=BODY_S
        ) from None


async def _rest(
    message: Message, receive: Receive, inflow: SharedQuota, bearer: bytes
) -> bytes | None:
    """A body that comes in parts, of which `message` is the first."""
    parts: list[bytes] = []
    try:
        while message["type"] == "http.request":
            part = message.get("body", b"")
            inflow.take(bearer, len(part))
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)
            message = await receive()
        return None
    finally:
        inflow.give_back(bearer, sum(map(len, parts)))


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
