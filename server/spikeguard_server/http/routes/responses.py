"""Who responds to an incident: acknowledged, assigned and commented on by whoever may decide."""

from __future__ import annotations

import sqlalchemy as sql
from fastapi import APIRouter

from spikeguard_protocol import IncidentId
from spikeguard_server.http.bodies.incident_shapes import IncidentDetail, ResponseBody
from spikeguard_server.http.bodies.incidents import incident_detail
from spikeguard_server.http.bodies.responses import AssigneeWanted, CommentWanted
from spikeguard_server.http.dependencies import (
    CallerDep,
    Number,
    RunDep,
    ServicesDep,
    person_of,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.ingest.responses import (
    acknowledge,
    assign,
    comment,
    take_back_acknowledgement,
)
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.responses import read_response

router = APIRouter(tags=["incidents"])
PATH = "/v1/runs/{project}/{name}/incidents/{number}"


@router.post(
    PATH + "/acknowledgement", summary="Acknowledge an incident", response_model=IncidentDetail
)
def post_acknowledgement(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number
) -> JsonReply:
    """The caller looks at it: nothing is escalated, and no message repeats what is known. Of
    several people the first one has it. A new proposal, a result and the end are still told."""
    incident = IncidentId(run, number)
    with services.engine.begin() as connection:
        acknowledge(connection, incident, person_of(caller))
        return _shown(connection, incident)


@router.delete(
    PATH + "/acknowledgement", summary="Take an acknowledgement back", response_model=IncidentDetail
)
def delete_acknowledgement(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number
) -> JsonReply:
    """Escalation goes on where it stood; what is overdue is told at once."""
    incident = IncidentId(run, number)
    with services.engine.begin() as connection:
        take_back_acknowledgement(connection, incident, person_of(caller))
        return _shown(connection, incident)


@router.post(PATH + "/assignee", summary="Assign an incident", response_model=IncidentDetail)
def post_assignee(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number, wanted: AssigneeWanted
) -> JsonReply:
    """Whose it is from now on, open or closed; it keeps nobody else from deciding."""
    incident = IncidentId(run, number)
    with services.engine.begin() as connection:
        assign(connection, incident, wanted.assignee, person_of(caller))
        return _shown(connection, incident)


@router.post(
    PATH + "/comments",
    summary="Comment on an incident",
    response_model=ResponseBody,
    status_code=201,
)
def post_comment(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number, wanted: CommentWanted
) -> JsonReply:
    """Kept with the incident, and in its post-mortem; of a closed one that is written anew."""
    incident = IncidentId(run, number)
    with services.engine.begin() as connection:
        written = comment(connection, incident, wanted.text, person_of(caller))
        row = read_response(connection, existing_run(connection, run), number, written)
        return JsonReply(ResponseBody.model_validate(row), status_code=201)


def _shown(connection: sql.Connection, incident: IncidentId) -> JsonReply:
    key = existing_run(connection, incident.run)
    row = read_incident(connection, key, incident.run, incident.number)
    return JsonReply(incident_detail(connection, row))
