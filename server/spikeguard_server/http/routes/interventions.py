"""What was done to a run, in one list: commands and changes made outside."""

from __future__ import annotations

from fastapi import APIRouter

from spikeguard_server.http.bodies.interventions import InterventionList, intervention_body
from spikeguard_server.http.dependencies import Cursor, Limit, RunDep, ServicesDep
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.history import existing_run, read_interventions

router = APIRouter(tags=["runs"])


@router.get(
    "/v1/runs/{project}/{name}/interventions",
    summary="What was done to a run",
    response_model=InterventionList,
)
def get_interventions(
    services: ServicesDep, run: RunDep, limit: Limit = 50, cursor: Cursor = None
) -> JsonReply:
    """Who, when, at which step, why, what was expected of the loss, and what came, measured
    against its earlier trend. Newest first."""
    page = PageWanted(limit, cursor)
    with services.snapshot() as connection:
        key = existing_run(connection, run)
        found, more = read_interventions(connection, key, page)
        items = [intervention_body(one, run) for one in found]
    return JsonReply(InterventionList(items=items, next_cursor=more))
