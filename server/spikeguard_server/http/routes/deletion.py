"""Delete a run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_server.http.dependencies import CallerDep, RunDep, ServicesDep
from spikeguard_server.http.routes.tokens import actor
from spikeguard_server.ingest.deletion import REMOVE_S, delete_run, finish_deletion

router = APIRouter(tags=["runs"])
Why = Annotated[
    str,
    Query(alias="reason", min_length=1, max_length=MAX_REASON, description="why, for the record"),
]


@router.delete("/v1/runs/{project}/{name}", summary="Delete a run", status_code=204)
def delete(services: ServicesDep, caller: CallerDep, run: RunDep, reason: Why) -> Response:
    """Its samples, incidents, commands and post-mortems are removed for good; its audit stays.
    Refused while an attempt of it lives. A run of the same name that begins later numbers its
    attempts and incidents on from there."""
    with services.engine.begin() as connection:
        key = delete_run(connection, run, actor(caller), reason, services.silent_after)
    finish_deletion(services.engine, key, REMOVE_S)
    return Response(status_code=204)
