"""The dashboard as a web service: Streamlit's own, with careful headers, a script in its page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import streamlit
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.starlette import App

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


app = App(
    Path(__file__).with_name("app.py"),
    middleware=[Middleware(CarefulHeaders)],
)
