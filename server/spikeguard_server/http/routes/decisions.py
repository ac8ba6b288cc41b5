"""A person's approval or rejection of a proposal, by the API or by the page."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request

from spikeguard_protocol import CommandId
from spikeguard_server.errors import NoPerson, NotFound, RevisionChanged, Unprocessable, WrongState
from spikeguard_server.http.bodies.incident_shapes import (
    Approval,
    CommandBody,
    Rejection,
)
from spikeguard_server.http.bodies.incidents import command_body
from spikeguard_server.http.dependencies import (
    CallerDep,
    CommandDep,
    Services,
    ServicesDep,
    origin_of,
    person_of,
)
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.ingest.decisions import Way, approve, reject
from spikeguard_server.store.reads.costs import read_pace
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.incidents import read_commands, read_incident

router = APIRouter(tags=["decisions"])
_PATH = "/v1/runs/{project}/{name}/incidents/{number}/commands/{command}"
_REFUSALS = refusals(
    NoPerson(),
    NotFound("There is no command gpt-124m-7#3.1", "`spikeguard incidents` lists them"),
    RevisionChanged({"id": "gpt-124m-7#3.1", "revision": 2}),
    WrongState("gpt-124m-7#3.1 was rejected by Ada Lovelace", "Nothing is left to decide"),
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person said to one revision of a proposal, and over what."""

    command: CommandId
    verdict: str  # approve, reject
    revision: int
    person: str
    way: Way
    reason: str = ""  # of a rejection


def decide(services: Services, made: Decision) -> None:
    """Approve or reject in a person's name."""
    engine, command = services.engine, made.command
    if made.verdict == "approve":
        approve(engine, command, made.revision, made.person, way=made.way)
    elif made.verdict == "reject":
        _check_reason(made.reason)
        reject(engine, command, made.revision, made.person, made.reason, way=made.way)
    else:
        raise Unprocessable("A verdict is approve or reject", "Use the buttons", field="verdict")


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise Unprocessable(
            "A rejection needs a reason", "Say why: the record keeps it", field="reason"
        )


@router.post(
    _PATH + "/approve",
    summary="Approve a proposal",
    response_model=CommandBody,
    response_class=JsonReply,
    responses=_REFUSALS,
)
def post_approval(
    services: ServicesDep,
    caller: CallerDep,
    command: CommandDep,
    approval: Approval,
    request: Request,
) -> JsonReply:
    """The run fetches the command and carries it out at a step boundary, on all ranks at once.
    What would be proposed now is found anew: a proposal that changed since is a 409 with the new
    revision, one that lost its reason is withdrawn."""
    person, way = person_of(caller), _over_the_api(request)
    made = Decision(command, "approve", approval.revision, person, way)
    return _decided(services, made)


@router.post(
    _PATH + "/reject",
    summary="Reject a proposal",
    response_model=CommandBody,
    response_class=JsonReply,
    responses=_REFUSALS,
)
def post_rejection(
    services: ServicesDep,
    caller: CallerDep,
    command: CommandDep,
    rejection: Rejection,
    request: Request,
) -> JsonReply:
    """Nothing is done. The policy proposes the same verb again once something new is known, after
    `ask_again_steps` at the earliest."""
    person, way = person_of(caller), _over_the_api(request)
    made = Decision(command, "reject", rejection.revision, person, way, rejection.reason)
    return _decided(services, made)


def _over_the_api(request: Request) -> Way:
    return Way("the API", origin_of(request))


def _decided(services: Services, made: Decision) -> JsonReply:
    try:
        decide(services, made)
    except RevisionChanged:
        raise RevisionChanged(read_body(services, made.command).model_dump()) from None
    return JsonReply(read_body(services, made.command))


def read_body(services: Services, command: CommandId) -> CommandBody:
    """A command as it stands now; raise `NotFound` if there is none."""
    incident = command.incident
    with services.snapshot() as connection:
        key = existing_run(connection, incident.run)
        row = read_incident(connection, key, incident.run, incident.number)
        known = read_commands(connection, [(key, incident.number)]).get((key, incident.number), [])
        for facts in known:
            if facts.row.number == command.number:
                return command_body(facts, read_pace(connection, row))
    raise NotFound(f"There is no command {command}", "Open it from its incident")
