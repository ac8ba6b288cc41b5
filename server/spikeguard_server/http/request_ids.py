"""The id of a request: in its answer's `X-Request-Id`, and in every record that is logged for it.

A caller's own is taken where it is 1 to 128 visible ASCII characters; otherwise one is made.
"""

from __future__ import annotations

import re
from secrets import token_hex
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spikeguard_server.log_format import add_context

HEADER: Final = "X-Request-Id"
_NAME: Final = HEADER.lower().encode()
_TAKEN: Final = re.compile(rb"[!-~]{1,128}")


class RequestIds:
    """Plain ASGI. The context is not put back: a request has a task, and so a context, of its own,
    and what the web server logs of its failure belongs to it too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given(scope) or token_hex(8)
        add_context(request_id=request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault(HEADER, request_id)
            await send(message)

        await self._app(scope, receive, send_with_id)


def _given(scope: Scope) -> str | None:
    """The caller's own, where it is fit to be written."""
    given = next((value for name, value in scope["headers"] if name == _NAME), b"")
    return given.decode("ascii") if _TAKEN.fullmatch(given) else None
