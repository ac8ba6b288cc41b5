"""Silences and maintenance windows: listed, made and taken back by whoever decides."""

from __future__ import annotations

from fastapi import APIRouter, Response

from spikeguard_core.notification.delivery import NewSilence
from spikeguard_protocol import DEFAULT_PROJECT
from spikeguard_server.http.bodies.channels import SilenceBody, SilenceList, SilenceWanted
from spikeguard_server.http.dependencies import (
    CallerDep,
    Number,
    Project,
    ReasonAsked,
    ServicesDep,
    person_of,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.http.routes.channels import ProjectAsked
from spikeguard_server.notify.upkeep import silence, speak_again
from spikeguard_server.store.reads.notices import read_silence, read_silences

router = APIRouter(tags=["notifications"])


@router.get("/v1/silences", summary="List silences", response_model=SilenceList)
def get_silences(
    services: ServicesDep, caller: CallerDep, project: ProjectAsked = DEFAULT_PROJECT
) -> JsonReply:
    """Silences and maintenance windows in force or to come, the first to end first."""
    caller.check_project(project)
    with services.snapshot() as connection:
        found = read_silences(connection, project)
    return JsonReply(SilenceList(items=[_body(row) for row in found]))


@router.post(
    "/v1/silences", summary="Silence something", response_model=SilenceBody, status_code=201
)
def post_silence(services: ServicesDep, caller: CallerDep, wanted: SilenceWanted) -> JsonReply:
    """Nobody is told until it ends; what is still true then is told."""
    caller.check_project(wanted.project)
    new = NewSilence(**wanted.model_dump())
    with services.engine.begin() as connection:
        number = silence(connection, new, person_of(caller))
        row = read_silence(connection, wanted.project, number)
        return JsonReply(_body(row), status_code=201)


@router.delete("/v1/silences/{project}/{number}", summary="End a silence", status_code=204)
def delete_silence(
    services: ServicesDep,
    caller: CallerDep,
    project: Project,
    number: Number,
    reason: ReasonAsked = None,
) -> Response:
    """What it held is told at once, if it is still true."""
    with services.engine.begin() as connection:
        speak_again(connection, project, number, person_of(caller), reason)
    return Response(status_code=204)


def _body(row: object) -> SilenceBody:
    names = SilenceBody.model_fields
    return SilenceBody(**{name: getattr(row, name) for name in names})
