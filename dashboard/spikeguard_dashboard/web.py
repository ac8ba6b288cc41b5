"""The dashboard as a web service: Streamlit's own, with the headers of a careful one.

Found by `streamlit run`, which serves `app` instead of running this file as a page.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.starlette import App

from spikeguard_client import ApiError
from spikeguard_dashboard.client import Client
from spikeguard_dashboard.hosts import HOSTS, is_ours, known_hosts
from spikeguard_dashboard.settings import SettingError, read_settings
from spikeguard_dashboard.used_calls import UsedCalls
from spikeguard_dashboard.visitors import Visitors
from spikeguard_protocol.cookies import plain_cookies

# Streamlit's pages need scripts and styles inline, so a policy can forbid no more than this.
HEADERS: Final = {
    "Content-Security-Policy": "frame-ancestors 'self'; object-src 'none'; base-uri 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class CarefulHeaders:
    """Adds `HEADERS` to every answer that does not set its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class PlainCookies:
    """Leaves out cookies that none of ours can be, before Streamlit reads them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "headers" in scope:
            scope["headers"] = plain_cookies(scope["headers"])
        await self._app(scope, receive, send)


class KnownHosts:
    """Answers only where it is called by a name of its own (`hosts`)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._known = app, known_hosts(os.environ)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_ours(
            Headers(scope=scope).get("host", ""), self._known
        ):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: a 403
        else:
            await PlainTextResponse(_NOT_OURS, 421)(scope, receive, send)


_NOT_OURS: Final = (
    "This dashboard does not answer to the host name that it was called by.\n"
    f"Name it in {HOSTS}, or call the dashboard as SPIKEGUARD_DASHBOARD_URL says.\n"
)


@cache
def _client(server: str) -> Client:
    return Client(server)


def _token_of(secret: str) -> int | None:
    """The token behind a session's secret; None for one that the server does not take."""
    try:
        return _client(read_settings(os.environ).server).me(secret)["token"]
    except (ApiError, SettingError):
        return None


app = App(
    Path(__file__).with_name("app.py"),
    middleware=[
        Middleware(CarefulHeaders),
        Middleware(KnownHosts),
        Middleware(UsedCalls),
        Middleware(PlainCookies),
        Middleware(Visitors, check=_token_of),
    ],
)
