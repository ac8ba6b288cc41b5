"""The OpenAPI document, public as the sources are."""

from __future__ import annotations

from threading import Lock
from typing import Final

from fastapi import APIRouter, FastAPI, Request, Response

from spikeguard_server.http.responses import JsonReply

router = APIRouter(include_in_schema=False)
_WRITING: Final = Lock()


@router.get("/openapi.json")
def get_document(request: Request) -> Response:
    """What every call takes and answers."""
    return Response(_written(request.app), media_type="application/json")


def _written(app: FastAPI) -> bytes:
    """Made once: who asks needs no token, and making it takes a tenth of a second of a core."""
    with _WRITING:
        if not hasattr(app.state, "written"):
            app.state.written = bytes(JsonReply(app.openapi()).body)
        written: bytes = app.state.written
        return written
