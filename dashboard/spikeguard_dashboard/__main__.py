"""Starts the dashboard: `python -m spikeguard_dashboard --host 127.0.0.1 --port 8501`.

Serves Streamlit's own pages with careful headers and a script, on the address, or on a socket that
whoever started it has bound (`--descriptor`), so that nobody else can answer in its place. The
server comes from `SPIKEGUARD_*` (`settings`); how it looks and what it never does (usage
statistics, deploy button) from `.streamlit/config.toml` beside `app.py`.
"""

from __future__ import annotations

import os
import socket
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import streamlit
import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.starlette import App

FORWARDED = "FORWARDED_ALLOW_IPS"  # uvicorn's: the proxies whose X-Forwarded-For counts

# Streamlit's pages need scripts and styles inline, so a policy can forbid no more than this.
HEADERS: Final = {
    "Content-Security-Policy": "frame-ancestors 'self'; object-src 'none'; base-uri 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}

# Under load a browser may fail to fetch the code of a chart, and Streamlit does not ask again: the
# page is loaded anew, at most once in ten seconds. It listens before anything is drawn.
RETRY: Final = b"""<head><script>
addEventListener("vite:preloadError", () => {
  if (Date.now() - Number(sessionStorage.sgReloaded || 0) < 10000) return
  sessionStorage.sgReloaded = Date.now()
  location.reload()
})
</script>"""


class CarefulHeaders:
    """Adds `HEADERS` to every answer that does not set its own, and `RETRY` to Streamlit's page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        page = (Path(streamlit.__file__).parent / "static/index.html").read_bytes()
        page = page.replace(b"<head>", RETRY, 1)
        self._page: ASGIApp = HTMLResponse(page, headers={"Cache-Control": "no-cache"})
        base = f"/{streamlit.get_option('server.baseUrlPath').strip('/')}".rstrip("/")
        self._pages = {base + path for path in ("/", "/run", "/incident", "/compare")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        shows_page = scope["type"] == "http" and scope["path"] in self._pages
        await (self._page if shows_page else self._app)(scope, receive, send_with_headers)


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer until a signal ends it."""
    parser = ArgumentParser(prog="python -m spikeguard_dashboard", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8501, help="port to listen on")
    parser.add_argument(
        "--descriptor", type=int, help="of a socket that listens, instead of --host and --port"
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault(FORWARDED, "")  # or any user of this machine could claim an address
    app = App(Path(__file__).with_name("app.py"), middleware=[Middleware(CarefulHeaders)])
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        log_level="warning",
        access_log=False,
        server_header=False,
    )
    given = None if options.descriptor is None else [socket.socket(fileno=options.descriptor)]
    uvicorn.Server(config).run(sockets=given)


if __name__ == "__main__":
    main()
