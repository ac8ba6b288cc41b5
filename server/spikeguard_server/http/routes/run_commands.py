"""Commands of a run itself: a person orders them without an incident."""

from __future__ import annotations

from fastapi import APIRouter, Request

from spikeguard_protocol import RUN_ITSELF, CommandId, IncidentId, RunId, Verb
from spikeguard_server.errors import (
    Conflict,
    NoPerson,
    NotFound,
    RevisionChanged,
    Unprocessable,
    WrongState,
)
from spikeguard_server.http.bodies.incident_shapes import Rejection
from spikeguard_server.http.bodies.orders import RunOrder
from spikeguard_server.http.bodies.run_commands import (
    RunCommandBody,
    RunCommandList,
    run_command_body,
)
from spikeguard_server.http.dependencies import (
    CallerDep,
    Cursor,
    Limit,
    Number,
    RunDep,
    Services,
    ServicesDep,
    origin_of,
    page_wanted,
    person_of,
)
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.http.routes.decisions import Decision, decide
from spikeguard_server.http.routes.incident_orders import order
from spikeguard_server.ingest.decisions import Way
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.run_commands import list_run_commands, read_run_command

router = APIRouter(tags=["decisions"])
PATH = "/v1/runs/{project}/{name}/commands"
_NO_RUN = NotFound("There is no run gpt-124m-7", "`spikeguard runs` lists those there are")
_ORDERED = refusals(
    NoPerson(),
    _NO_RUN,
    Conflict("gpt-124m-7#0.1 is delivered: one stop at a time", "Wait for what becomes of it"),
    WrongState("gpt-124m-7 has no attempt that trains", "Start the job again first"),
    Unprocessable("gpt-124m-7 cannot be ordered to stop", "docs/agent.md says why", field="verb"),
)
_DECIDED = refusals(
    NoPerson(),
    NotFound("There is no command gpt-124m-7#0.1", "`spikeguard run` gives one"),
    RevisionChanged({"id": "gpt-124m-7#0.1", "revision": 2}),
    WrongState("gpt-124m-7#0.1 was rejected by Ada Lovelace", "Nothing is left to decide"),
)


@router.get(
    PATH, summary="Commands of a run without an incident", response_model=RunCommandList,
    response_class=JsonReply, responses=refusals(_NO_RUN),
)  # fmt: skip
def get_run_commands(
    services: ServicesDep, run: RunDep, limit: Limit = 50, cursor: Cursor = None
) -> JsonReply:
    """What people ordered of it and what became of that, newest first. Commands of its incidents
    stand with those."""
    page = page_wanted(limit, cursor, int)
    with services.snapshot() as connection:
        found, more = list_run_commands(connection, existing_run(connection, run), page)
    return JsonReply(RunCommandList(items=[run_command_body(r) for r in found], next_cursor=more))


@router.post(
    PATH, summary="Order something of a run", response_model=RunCommandBody,
    response_class=JsonReply, status_code=201, responses=_ORDERED,
)  # fmt: skip
def post_run_command(
    services: ServicesDep, caller: CallerDep, run: RunDep, wanted: RunOrder, request: Request
) -> JsonReply:
    """The job does it at its next step boundary, on all ranks at once: goes back, skips, lowers the
    learning rate, saves a checkpoint, ends the attempt. The order is the caller's yes too. What the
    job did not say that it can do, or would refuse by its own limits, is a 422. While an incident
    is open, what changes the training is ordered of the incident."""
    person, way = person_of(caller), Way("the API", origin_of(request))
    ordered, itself = wanted.ordered(Verb(wanted.verb)), IncidentId(run, RUN_ITSELF)
    made = order(services, itself, ordered, person, way)
    return JsonReply(_read(services, made), status_code=201)


@router.post(
    PATH + "/{command}/reject", summary="Reject a command of a run",
    response_model=RunCommandBody, response_class=JsonReply, responses=_DECIDED,
)  # fmt: skip
def post_run_rejection(
    services: ServicesDep, caller: CallerDep, run: RunDep, command: Number, rejection: Rejection,
    request: Request,
) -> JsonReply:  # fmt: skip
    """Nothing is done; what was approved and not fetched yet is taken back."""
    way = Way("the API", origin_of(request))
    made = Decision(
        _id(run, command), "reject", rejection.revision, person_of(caller), way, rejection.reason
    )
    return _decided(services, made)


def _id(run: RunId, number: int) -> CommandId:
    return CommandId(IncidentId(run, RUN_ITSELF), number)


def _decided(services: Services, made: Decision) -> JsonReply:
    try:
        decide(services, made)
    except RevisionChanged:
        raise RevisionChanged(_read(services, made.command).model_dump()) from None
    return JsonReply(_read(services, made.command))


def _read(services: Services, command: CommandId) -> RunCommandBody:
    run = command.incident.run
    with services.snapshot() as connection:
        row = read_run_command(connection, existing_run(connection, run), command.number)
    if row is None:
        raise NotFound(f"There is no command {command}", f"`spikeguard run {run}` lists them")
    return run_command_body(row)
