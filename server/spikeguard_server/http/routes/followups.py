"""Follow-ups of an incident: what is to be done because of it, whose it is, whether it is done."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sql
from fastapi import APIRouter, Path

from spikeguard_protocol import IncidentId
from spikeguard_server.errors import Conflict, NoPerson, NotFound, WrongState
from spikeguard_server.http.bodies.followups import (
    FollowupBody,
    FollowupChange,
    FollowupList,
    FollowupWanted,
    followup_body,
)
from spikeguard_server.http.dependencies import (
    CallerDep,
    Number,
    RunDep,
    ServicesDep,
    person_of,
)
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.ingest.followups import FollowupEdit, add, change, no_followup
from spikeguard_server.store.followups import read_followup, read_followups
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.incidents import read_incident

router = APIRouter(tags=["incidents"])
PATH = "/v1/runs/{project}/{name}/incidents/{number}/followups"
FollowupNumber = Annotated[
    int, Path(ge=1, le=2**31 - 1, examples=[2], description="of the follow-up")
]
_NO_INCIDENT = NotFound(
    "There is no incident gpt-124m-7#3", "`spikeguard incidents gpt-124m-7` lists them"
)
_FULL = Conflict("gpt-124m-7#3 has 100 follow-ups, which is the most", "Keep them in your tracker")
_CHANGED = Conflict(
    "Follow-up 2 of gpt-124m-7#3 was changed by Ada meanwhile", "Look at it again", field="revision"
)
_CLOSED = WrongState("The follow-up is dropped", "Reopen it first", field="state")


@router.get(
    PATH, summary="Follow-ups of an incident", response_model=FollowupList,
    response_class=JsonReply, responses=refusals(_NO_INCIDENT),
)  # fmt: skip
def get_followups(services: ServicesDep, run: RunDep, number: Number) -> JsonReply:
    """What its post-mortem asks for and what people added, with owner and state; none before it has
    closed, but those that people added."""
    with services.snapshot() as connection:
        row = read_incident(connection, existing_run(connection, run), run, number)
        found = read_followups(connection, row.run_id, number)
    return JsonReply(FollowupList(items=[followup_body(each) for each in found]))


@router.post(
    PATH, summary="Add a follow-up", response_model=FollowupBody, response_class=JsonReply,
    status_code=201, responses=refusals(NoPerson(), _NO_INCIDENT, _FULL),
)  # fmt: skip
def post_followup(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number, wanted: FollowupWanted
) -> JsonReply:
    """What a person wants done; the post-mortem is written anew with it."""
    incident = IncidentId(run, number)
    with services.engine.begin() as connection:
        made = add(connection, incident, wanted.text, wanted.owner, person_of(caller))
        return _shown(connection, incident, made, 201)


@router.post(
    PATH + "/{followup}", summary="Change a follow-up", response_model=FollowupBody,
    response_class=JsonReply, responses=refusals(NoPerson(), _NO_INCIDENT, _CHANGED, _CLOSED),
)  # fmt: skip
def change_followup(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number,
    followup: FollowupNumber, wanted: FollowupChange,
) -> JsonReply:  # fmt: skip
    """Reword it, give it to somebody, tick it off, drop it or reopen it."""
    incident = IncidentId(run, number)
    asked = FollowupEdit(wanted.revision, wanted.text, wanted.owner, wanted.nobody, wanted.state)
    with services.engine.begin() as connection:
        change(connection, incident, followup, asked, person_of(caller))
        return _shown(connection, incident, followup)


def _shown(
    connection: sql.Connection, incident: IncidentId, number: int, status: int = 200
) -> JsonReply:
    run_id = existing_run(connection, incident.run)
    row = read_followup(connection, run_id, incident.number, number)
    if row is None:
        raise no_followup(incident, number)
    return JsonReply(followup_body(row), status_code=status)
