"""What was done to a run, in one list: commands and changes made outside."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter

from spikeguard_server.errors import NotFound
from spikeguard_server.http.bodies.interventions import InterventionList, intervention_body
from spikeguard_server.http.dependencies import Cursor, Limit, RunDep, ServicesDep, page_wanted
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.interventions import read_interventions

router = APIRouter(tags=["runs"])
_NO_RUN = NotFound("There is no run gpt-124m-7", "`spikeguard runs` lists those there are")


@router.get(
    "/v1/runs/{project}/{name}/interventions", summary="What was done to a run",
    response_model=InterventionList, response_class=JsonReply, responses=refusals(_NO_RUN),
)  # fmt: skip
def get_interventions(
    services: ServicesDep, run: RunDep, limit: Limit = 50, cursor: Cursor = None
) -> JsonReply:
    """Who, when, at which step, why, what was expected of the loss, and what came, measured
    against its earlier trend. Newest first."""
    page = page_wanted(limit, cursor, _moment, int, int, int)
    with services.snapshot() as connection:
        key = existing_run(connection, run)
        found, more = read_interventions(connection, key, run, page)
    return JsonReply(
        InterventionList(items=[intervention_body(one) for one in found], next_cursor=more)
    )


def _moment(text: str) -> datetime:
    """Of a cursor; aware, as those of the rows are."""
    return datetime.fromisoformat(text).astimezone(UTC)
