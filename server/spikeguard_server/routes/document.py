"""The OpenAPI document, public as the sources are."""

from __future__ import annotations

from fastapi import APIRouter, Request

from spikeguard_server.routes.answers import Answer

router = APIRouter()


@router.get("/openapi.json", include_in_schema=False)
def get_document(request: Request) -> Answer:
    """What every call takes and answers."""
    return Answer(request.app.openapi())
