"""The OpenAPI document, public as the sources are, and the page that shows it.

Invariants: the page holds the document and loads nothing from other hosts; its Content-Security-
Policy lets it run the scripts of this server and make no call at all, so that no cookie goes with
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from spikeguard_server.errors import NotFound
from spikeguard_server.http.pages import docs_page, docs_script
from spikeguard_server.http.responses import JsonReply

router = APIRouter(include_in_schema=False)
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
_WRITING: Final = Lock()
KEPT: Final = {"Cache-Control": "public, max-age=3600"}
TYPES: Final[Mapping[str, str]] = {
    "start.js": "text/javascript; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class ApiDocuments:
    """The document of an application as JSON, and as a page."""

    document: bytes
    page: bytes


@router.get("/openapi.json")
def get_document(request: Request) -> Response:
    """What every call takes and answers."""
    return Response(_written(request.app).document, media_type="application/json")


@router.get("/docs")
def get_page(request: Request) -> Response:
    """The same for people."""
    html = _written(request.app).page
    return HTMLResponse(html, headers={"Content-Security-Policy": PAGE_POLICY})


def _written(app: FastAPI) -> ApiDocuments:
    """Made once: who asks needs no token, and making it takes a tenth of a second of a core."""
    with _WRITING:
        if not hasattr(app.state, "written"):
            document = app.openapi()
            page = docs_page(document).encode()
            app.state.written = ApiDocuments(bytes(JsonReply(document).body), page)
        written: ApiDocuments = app.state.written
        return written


@router.get("/docs/{file}")
def get_file(file: str) -> Response:
    """What the page loads."""
    if file not in TYPES:
        raise NotFound("There is no such file", "/docs shows what the server takes")
    return Response(_content(file), media_type=TYPES[file], headers=KEPT)


@cache
def _content(file: str) -> bytes:
    if file == "start.js":
        return docs_script()
    return (files("fastapi_offline") / "static" / file).read_bytes()
