"""What the incidents of some weeks came to, by week and by run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Response

from spikeguard_protocol import RunId
from spikeguard_server.errors import NotFound
from spikeguard_server.http.bodies.summary import SummaryBody, summary_body, summary_document
from spikeguard_server.http.dependencies import (
    CallerDep,
    ProjectAsked,
    ServicesDep,
    project_asked,
)
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.http.routes.incidents import HTML_POLICY
from spikeguard_server.store.clock import database_now
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.summary import MAX_WEEKS, SummaryWanted, read_summary

router = APIRouter(tags=["incidents"])


class SummaryFormat(StrEnum):
    """How a summary is written."""

    JSON = "json"
    MD = "md"
    HTML = "html"
    TXT = "txt"


_MEDIA = {
    SummaryFormat.MD: "text/markdown; charset=utf-8",
    SummaryFormat.HTML: "text/html; charset=utf-8",
    SummaryFormat.TXT: "text/plain; charset=utf-8",
}
_TEXTS = {
    200: {
        "content": {
            "text/markdown": {"example": "# Incidents from 2026-02-16 to 2026-03-14\n"},
            "text/html": {"example": "<!doctype html><title>Incidents</title>"},
            "text/plain": {"example": "Incidents from 2026-02-16 to 2026-03-14"},
        }
    },
    **refusals(NotFound("There is no run gpt-124m-7", "`spikeguard runs` lists them")),
}


@router.get(
    "/v1/summary", summary="Incidents by week and by run", response_model=SummaryBody,
    response_class=JsonReply, responses=_TEXTS,
)  # fmt: skip
def get_summary(
    services: ServicesDep,
    caller: CallerDep,
    project: ProjectAsked = None,
    run: Annotated[
        str | None,
        Query(
            max_length=130, examples=["default/gpt-124m-7"], description="`NAME` or `PROJECT/NAME`"
        ),
    ] = None,
    weeks: Annotated[
        int, Query(ge=1, le=MAX_WEEKS, description="this week and those before it")
    ] = 4,
    format: SummaryFormat = SummaryFormat.JSON,
) -> Response:
    """Incidents that opened in these weeks, by kind and cause; how long they took to be detected,
    decided on and over; what they cost and what going back saved; causes that came again; and
    follow-ups that are still open, however old."""
    asked = RunId.parse(run) if run else None
    if asked is not None:
        caller.check_project(asked.project)
    scope = project_asked(caller, project)
    words = str(asked) if asked else f"project {scope}" if scope else "all projects"
    with services.snapshot() as connection:
        key = existing_run(connection, asked) if asked else None
        wanted = SummaryWanted(database_now(connection), weeks, scope, key, words)
        facts = read_summary(connection, wanted)
    if format is SummaryFormat.JSON:
        return JsonReply(summary_body(facts))
    headers = {"Content-Security-Policy": HTML_POLICY} if format is SummaryFormat.HTML else {}
    body = summary_document(facts, format.value)
    return Response(body, media_type=_MEDIA[format], headers=headers)
