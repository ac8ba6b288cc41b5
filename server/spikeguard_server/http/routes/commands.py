"""Commands: what can be ordered, a person's order, approval or rejection, and what becomes of it.

A command belongs to an incident, or to the run itself where a person ordered it without one.
"""

from __future__ import annotations

from fastapi import APIRouter, Request

from spikeguard_protocol import RUN_ITSELF, CommandId, IncidentId, Verb
from spikeguard_server.errors import NotFound, RevisionChanged, Unprocessable
from spikeguard_server.http.bodies.incident_shapes import (
    Approval,
    CommandBody,
    CommandList,
    Rejection,
)
from spikeguard_server.http.bodies.incidents import command_bodies, command_body
from spikeguard_server.http.bodies.orders import IncidentOrder, OptionsBody, RunOrder, options_body
from spikeguard_server.http.dependencies import (
    CallerDep,
    CommandDep,
    Cursor,
    Limit,
    Number,
    RunDep,
    Services,
    ServicesDep,
    origin_of,
    person_of,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.identity.actors import Actor
from spikeguard_server.identity.permissions import Caller
from spikeguard_server.ingest.decisions import Way, approve, approve_own, reject
from spikeguard_server.ingest.orders import Ordered, SeenProposal, place_order
from spikeguard_server.store.commands import (
    command_revisions_of,
    find_command,
    list_run_commands,
)
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.notes import with_effects
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.costs import read_options, read_pace
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.runs import read_run
from spikeguard_server.store.tables.core import run_key

router = APIRouter(tags=["decisions"])
_RUN = "/v1/runs/{project}/{name}"
_INCIDENT = _RUN + "/incidents/{number}/commands"


def decide(
    services: Services, command: CommandId, verdict: str, revision: int, by: Actor, reason: str,
    way: Way,
) -> None:  # fmt: skip
    """Approve or reject one revision of a proposal in a person's name."""
    if verdict == "approve":
        approve(services.engine, command, revision, by, way=way)
    elif verdict == "reject":
        if not reason.strip():
            raise Unprocessable(
                "A rejection needs a reason", "Say why: the record keeps it", field="reason"
            )
        reject(services.engine, command, revision, by, reason, way=way)
    else:
        raise Unprocessable("A verdict is approve or reject", "Use the buttons", field="verdict")


def order(
    services: Services, of: IncidentId, ordered: Ordered, by: Actor, way: Way, *,
    seen: SeenProposal | None = None,
) -> CommandId:  # fmt: skip
    """Order it of an incident, or of the run itself where its number is `RUN_ITSELF`, with the
    yes of whoever orders it."""
    with services.engine.begin() as connection:
        made = place_order(connection, of, ordered, by, seen)
        approve_own(connection, made, by, way)
    return made


@router.get(_RUN + "/options", summary="What can be ordered of a run", response_model=OptionsBody)
def get_options(services: ServicesDep, run: RunDep) -> JsonReply:
    """The verbs, with the reason for those that this job cannot do, and what the run can go back
    to: health, age, and what it would cost now."""
    with services.snapshot() as connection:
        row = read_run(connection, existing_run(connection, run), services.silent_after)
        return JsonReply(options_body(read_options(connection, row)))


@router.get(
    _RUN + "/commands", summary="Commands of a run without an incident", response_model=CommandList
)
def get_run_commands(
    services: ServicesDep, run: RunDep, limit: Limit = 50, cursor: Cursor = None
) -> JsonReply:
    """What people ordered of it and what became of that, newest first. Commands of its incidents
    stand with those."""
    page = PageWanted(limit, cursor)
    with services.snapshot() as connection:
        found, more = list_run_commands(connection, existing_run(connection, run), page)
        items = command_bodies(connection, with_effects(connection, found), None)
    return JsonReply(CommandList(items=items, next_cursor=more))


@router.post(
    _RUN + "/commands",
    summary="Order something of a run",
    response_model=CommandBody,
    status_code=201,
)
def post_run_command(
    services: ServicesDep, caller: CallerDep, run: RunDep, wanted: RunOrder, request: Request
) -> JsonReply:
    """The job does it at its next step boundary, on all ranks at once: goes back, skips, lowers the
    learning rate, saves a checkpoint, ends the attempt. The order is the caller's yes too. What the
    job did not say that it can do, or would refuse by its own limits, is a 422. While an incident
    is open, what changes the training is ordered of the incident."""
    ordered, itself = wanted.ordered(Verb(wanted.verb)), IncidentId(run, RUN_ITSELF)
    made = order(services, itself, ordered, person_of(caller), _over_the_api(request))
    return JsonReply(read_body(services, made), status_code=201)


@router.post(
    _INCIDENT,
    summary="Order something else than what is proposed",
    response_model=CommandBody,
    status_code=201,
)
def post_incident_order(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number, wanted: IncidentOrder,
    request: Request,
) -> JsonReply:  # fmt: skip
    """Another target, other batches, another learning rate, watching, stopping: it takes the place
    of the proposal that it names, by one act with the caller's yes."""
    incident, ordered = IncidentId(run, number), wanted.ordered(Verb(wanted.verb))
    by, way = person_of(caller), _over_the_api(request)
    try:
        made = order(services, incident, ordered, by, way, seen=wanted.seen)
    except RevisionChanged as changed:
        current = CommandId.parse(str(changed.extra["current"]["id"]))
        raise RevisionChanged(read_body(services, current, priced=True).model_dump()) from None
    return JsonReply(read_body(services, made), status_code=201)


@router.post(
    _INCIDENT + "/{command}/approve", summary="Approve a proposal", response_model=CommandBody
)
def post_approval(
    services: ServicesDep, caller: CallerDep, command: CommandDep, approval: Approval,
    request: Request,
) -> JsonReply:  # fmt: skip
    """The run fetches the command and carries it out at a step boundary, on all ranks at once.
    What would be proposed now is found anew: a proposal that changed since is a 409 with the new
    revision, one that lost its reason is withdrawn."""
    return _decided(services, caller, request, command, "approve", approval.revision)


@router.post(
    _INCIDENT + "/{command}/reject", summary="Reject a proposal", response_model=CommandBody
)
def post_rejection(
    services: ServicesDep, caller: CallerDep, command: CommandDep, rejection: Rejection,
    request: Request,
) -> JsonReply:  # fmt: skip
    """Nothing is done. The policy proposes the same verb again once something new is known, after
    `ask_again_steps` at the earliest."""
    return _decided(
        services, caller, request, command, "reject", rejection.revision, rejection.reason
    )


@router.post(
    _RUN + "/commands/{command}/reject",
    summary="Reject a command of a run",
    response_model=CommandBody,
)
def post_run_rejection(
    services: ServicesDep, caller: CallerDep, run: RunDep, command: Number, rejection: Rejection,
    request: Request,
) -> JsonReply:  # fmt: skip
    """Nothing is done; what was approved and not fetched yet is taken back."""
    named = CommandId(IncidentId(run, RUN_ITSELF), command)
    return _decided(
        services, caller, request, named, "reject", rejection.revision, rejection.reason
    )


def _over_the_api(request: Request) -> Way:
    return Way("the API", origin_of(request))


def _decided(
    services: Services, caller: Caller, request: Request, command: CommandId, verdict: str,
    revision: int, reason: str = "",
) -> JsonReply:  # fmt: skip
    way = _over_the_api(request)
    try:
        decide(services, command, verdict, revision, person_of(caller), reason, way)
    except RevisionChanged:
        raise RevisionChanged(read_body(services, command, priced=True).model_dump()) from None
    return JsonReply(read_body(services, command))


def read_body(services: Services, command: CommandId, *, priced: bool = False) -> CommandBody:
    """A command as it stands now; `priced`: with its cost, for whoever has to decide anew. Raise
    `NotFound` if there is none."""
    of, key, pace = command.incident, run_key(command.incident.run), None
    with services.snapshot() as connection:
        row = find_command(connection, key, of.number, command.number)
        if row is None:
            raise NotFound(f"There is no command {command}", "Open it from its incident")
        if priced and not command.of_run:
            pace = read_pace(connection, read_incident(connection, key, of.run, of.number))
        return command_body(row, command_revisions_of(connection, [row]), pace)
