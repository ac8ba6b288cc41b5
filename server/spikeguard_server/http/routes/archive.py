"""Archive, unarchive and delete a run."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import sqlalchemy as sql
from fastapi import APIRouter, Body, Query, Response

from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_server.http.bodies.run_shapes import ReasonGiven, RunBody, Shape, example
from spikeguard_server.http.bodies.runs import run_body
from spikeguard_server.http.dependencies import CallerDep, RunDep, Services, ServicesDep, person_of
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.http.routes.tokens import actor
from spikeguard_server.ingest.archive import (
    REMOVE_S,
    archive_run,
    delete_run,
    finish_deletion,
    unarchive_run,
)
from spikeguard_server.store.reads.runs import read_run

router = APIRouter(tags=["runs"])
Why = Annotated[
    str,
    Query(alias="reason", min_length=1, max_length=MAX_REASON, description="why, for the record"),
]


class ArchiveWanted(Shape):
    """Why a run is archived or brought back."""

    model_config = example({"reason": "the sweep is over"})

    reason: ReasonGiven = None


Wanted = Annotated[ArchiveWanted, Body(default_factory=ArchiveWanted)]


@router.post("/v1/runs/{project}/{name}/archive", summary="Archive a run", response_model=RunBody)
def post_archive(
    services: ServicesDep, caller: CallerDep, run: RunDep, wanted: Wanted
) -> JsonReply:
    """Lists, metrics and quotas leave it out until somebody brings it back or it trains again. It
    can still be read. Refused while an attempt of it lives."""
    with services.engine.begin() as connection:
        key = archive_run(connection, run, person_of(caller), wanted.reason, services.silent_after)
        return _shown(services, connection, key)


@router.post(
    "/v1/runs/{project}/{name}/unarchive", summary="Bring a run back", response_model=RunBody
)
def post_unarchive(
    services: ServicesDep, caller: CallerDep, run: RunDep, wanted: Wanted
) -> JsonReply:
    """Lists and metrics show it again."""
    with services.engine.begin() as connection:
        key = unarchive_run(connection, run, person_of(caller), wanted.reason)
        return _shown(services, connection, key)


@router.delete("/v1/runs/{project}/{name}", summary="Delete a run", status_code=204)
def delete(services: ServicesDep, caller: CallerDep, run: RunDep, reason: Why) -> Response:
    """Its samples, incidents, commands and post-mortems are removed for good; its audit stays.
    Refused while an attempt of it lives. A run of the same name that begins later numbers its
    attempts and incidents on from there."""
    with services.engine.begin() as connection:
        key = delete_run(connection, run, actor(caller), reason, services.silent_after)
    finish_deletion(services.engine, key, REMOVE_S)
    return Response(status_code=204)


def _shown(services: Services, connection: sql.Connection, key: UUID) -> JsonReply:
    row = read_run(connection, key, services.silent_after)
    return JsonReply(run_body(row, services.silent_after))
