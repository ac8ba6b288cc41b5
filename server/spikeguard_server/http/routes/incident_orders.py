"""What a person orders of an open incident in place of its proposal, and what they may order."""

from __future__ import annotations

from fastapi import APIRouter, Request

from spikeguard_protocol import CommandId, IncidentId, Verb
from spikeguard_server.errors import (
    Conflict,
    NoPerson,
    NotFound,
    RevisionChanged,
    Unprocessable,
    WrongState,
)
from spikeguard_server.http.bodies.incident_shapes import CommandBody
from spikeguard_server.http.bodies.options import options_body
from spikeguard_server.http.bodies.orders import IncidentOrder, OptionsBody
from spikeguard_server.http.dependencies import (
    CallerDep,
    Number,
    RunDep,
    Services,
    ServicesDep,
    origin_of,
    person_of,
)
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.http.routes.decisions import read_body
from spikeguard_server.identity.actors import Actor
from spikeguard_server.ingest.decisions import Way, approve_own
from spikeguard_server.ingest.orders import Ordered, SeenProposal, order_of_run, order_on_incident
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.options import read_options
from spikeguard_server.store.reads.runs import read_run

router = APIRouter(tags=["decisions"])
_NO_RUN = NotFound("There is no run gpt-124m-7", "`spikeguard runs` lists those there are")
_REFUSALS = refusals(
    NoPerson(),
    NotFound("There is no incident gpt-124m-7#3", "`spikeguard incidents` lists them"),
    RevisionChanged({"id": "gpt-124m-7#3.1", "revision": 2}),
    Conflict("gpt-124m-7#3.1 was approved by Ada Lovelace", "Wait for what becomes of it"),
    WrongState("gpt-124m-7#3 is closed", "Order it of the run"),
    Unprocessable("The run has no target 'step-9'", "Choose another", field="target"),
)


@router.get(
    "/v1/runs/{project}/{name}/options", summary="What can be ordered of a run",
    response_model=OptionsBody, response_class=JsonReply, responses=refusals(_NO_RUN),
)  # fmt: skip
def get_options(services: ServicesDep, run: RunDep) -> JsonReply:
    """The verbs, with the reason for those that this job cannot do, and what the run can go back
    to: health, age, and what it would cost now."""
    with services.snapshot() as connection:
        row = read_run(connection, existing_run(connection, run), services.silent_after)
        return JsonReply(options_body(read_options(connection, row)))


@router.post(
    "/v1/runs/{project}/{name}/incidents/{number}/commands",
    summary="Order something else than what is proposed", response_model=CommandBody,
    response_class=JsonReply, status_code=201, responses=_REFUSALS,
)  # fmt: skip
def post_incident_order(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number, wanted: IncidentOrder,
    request: Request,
) -> JsonReply:  # fmt: skip
    """Another target, other batches, another learning rate, watching, stopping: it takes the place
    of the proposal that it names, by one act with the caller's yes."""
    incident, ordered = IncidentId(run, number), wanted.ordered(Verb(wanted.verb))
    by, way = person_of(caller), Way("the API", origin_of(request))
    try:
        made = order(services, incident, ordered, by, way, seen=wanted.seen)
    except RevisionChanged as changed:
        current = CommandId.parse(str(changed.extra["current"]["id"]))
        raise RevisionChanged(read_body(services, current).model_dump()) from None
    return JsonReply(read_body(services, made), status_code=201)


def order(
    services: Services, of: IncidentId, ordered: Ordered, by: Actor, way: Way, *,
    seen: SeenProposal | None = None,
) -> CommandId:  # fmt: skip
    """Order it of an incident, or of the run itself where its number is `RUN_ITSELF`, with the
    yes of whoever orders it."""
    with services.engine.begin() as connection:
        if of.number:
            made = order_on_incident(connection, of, ordered, by, seen)
        else:
            made = order_of_run(connection, of.run, ordered, by)
        approve_own(connection, made, by, way)
    return made
