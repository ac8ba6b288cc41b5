"""Commands: what can be ordered, a person's order, approval or rejection, and what becomes of it.

A command belongs to an incident, or to the run itself where a person ordered it without one.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from spikeguard_core.policy.cost import Cost, cost_of
from spikeguard_core.policy.orders import Refusal, out_of_reach, why_not
from spikeguard_core.policy.situation import OrderLimits, RunSituation, Target
from spikeguard_protocol import RUN_ITSELF, CommandId, Health, IncidentId, Medium, Rollback, Verb
from spikeguard_server.errors import RevisionChanged, WrongState
from spikeguard_server.http.bodies.incidents import (
    Approval,
    CommandBody,
    Rejection,
    command_bodies,
    command_body,
)
from spikeguard_server.http.bodies.run_shapes import Expected, ItemList, Shape, Told
from spikeguard_server.http.dependencies import (
    Call,
    CallDep,
    CommandDep,
    IncidentDep,
    Number,
    PageDep,
    RunDep,
    Services,
)
from spikeguard_server.http.responses import BodyRoute
from spikeguard_server.ingest.decisions import Way, decide
from spikeguard_server.ingest.orders import OF_INCIDENT, OF_RUN, Ordered, place_order, why_no_orders
from spikeguard_server.store.commands import command_revisions_of, list_run_commands, read_command
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.notes import with_effects
from spikeguard_server.store.reads.runs import read_run
from spikeguard_server.store.runs import run_named
from spikeguard_server.store.situations import Options, read_options, read_pace

CommandNumber = Annotated[int, Field(ge=0, le=2**31 - 1)]


class RunOrder(Expected):
    """What a person orders of a run, and why; the record keeps the reason."""

    verb: Verb
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="as a command of the verb shows them; the step of a rollback is its target's",
    )
    reason: Told
    expires_in_s: float = Field(
        600.0, ge=5.0, le=86_400.0, allow_inf_nan=False,
        description="void if the job has not fetched it by then",
    )  # fmt: skip


class IncidentOrder(RunOrder):
    """What a person orders in place of the proposal that they have seen."""

    command: int | None = Field(
        None, ge=1, le=2**31 - 1, strict=True,
        description="number of the proposal that it replaces; null: none was waiting",
    )  # fmt: skip
    revision: int | None = Field(None, ge=1, le=2**31 - 1, strict=True, description="of it")


class VerbOption(Shape):
    """Whether a verb can be ordered now; if not, why, and what helps."""

    verb: Verb
    possible: bool
    reason: str = Field(description="why not; empty where it is possible")
    remedy: str


class TargetOption(Shape):
    """What the run can go back to, and what that would cost now."""

    name: str
    step: int
    position: int = Field(description="the next batch in the data order")
    medium: Medium
    health: Health
    damage: str | None = Field(description="what lies in its tensors; null: nothing was found")
    age_s: float
    reachable: bool = Field(description="false: further back than the job's own limit")
    cost: Cost


class OptionsBody(Shape):
    """What a person may order of a run now."""

    step: int
    position: int | None
    incident: int | None = Field(description="number of the open one")
    command: int | None = Field(description="number of what it proposes, which an order replaces")
    revision: int | None
    verbs: list[VerbOption]
    targets: list[TargetOption] = Field(description="newest first, at most 1000")
    limits: OrderLimits
    mitigations: dict[str, str] = Field(description="what the job can switch on: name to cost")


def options_body(options: Options) -> OptionsBody:
    """What can be ordered, newest target first; nothing can where no attempt trains."""
    situation, waiting = options.situation, options.waiting
    return OptionsBody(
        step=options.run.last_step or 0,
        position=options.run.position,
        incident=options.incident,
        command=None if waiting is None else waiting.number,
        revision=None if waiting is None else waiting.revision,
        verbs=_verbs(options),
        targets=[] if situation is None else [
            _target(target, situation, options) for target in reversed(situation.targets)
        ],
        limits=OrderLimits() if situation is None else situation.limits,
        mitigations={} if situation is None else dict(situation.mitigations),
    )  # fmt: skip


def _verbs(options: Options) -> list[VerbOption]:
    known = OF_RUN if options.incident is None else OF_RUN | OF_INCIDENT
    found = []
    if options.situation is None or not options.situation.mitigations:
        known -= {Verb.APPLY}
    for verb in (verb for verb in Verb if verb in known):
        refusal: WrongState | Refusal | None = why_no_orders(options)
        if refusal is None and options.situation is not None:
            refusal = why_not(verb, options.situation)
        found.append(
            VerbOption(
                verb=verb, possible=refusal is None,
                reason="" if refusal is None else refusal.message,
                remedy="" if refusal is None else refusal.remedy,
            )
        )  # fmt: skip
    return found


def _target(target: Target, situation: RunSituation, options: Options) -> TargetOption:
    return TargetOption.of(
        target,
        age_s=max(0.0, (options.now - options.saved_at[target.name]).total_seconds()),
        reachable=not out_of_reach(target, situation),
        cost=cost_of(Rollback(target.name, target.step), situation, options.policy),
    )


router = APIRouter(tags=["decisions"], route_class=BodyRoute)
_RUN = "/v1/runs/{project}/{name}"
_INCIDENT = _RUN + "/incidents/{number}/commands"


def order(call: Call, of: IncidentId, ordered: Ordered, way: Way) -> CommandId:
    """Order it of an incident, or of the run itself where its number is `RUN_ITSELF`, with the
    yes of whoever orders it."""
    with call.services.engine.begin() as connection:
        return place_order(
            connection, of, ordered, call.caller.actor, way, call.services.silent_after
        )


@router.get(_RUN + "/options", summary="What can be ordered of a run")
def get_options(call: CallDep, run: RunDep) -> OptionsBody:
    """The verbs, with the reason for those that this job cannot do, and what the run can go back
    to: health, age, and what it would cost now."""
    run_id = run_named(call.connection, run).run_id
    row = read_run(call.connection, run_id, call.services.silent_after)
    return options_body(read_options(call.connection, row))


@router.get(_RUN + "/commands", summary="Commands of a run without an incident")
def get_run_commands(call: CallDep, run: RunDep, page: PageDep) -> ItemList[CommandBody]:
    """What people ordered of it and what became of that, newest first. Commands of its incidents
    stand with those."""
    key = run_named(call.connection, run).run_id
    found, more = list_run_commands(call.connection, key, page)
    items = command_bodies(call.connection, with_effects(call.connection, found), None)
    return ItemList(items=items, next_cursor=more)


@router.post(_RUN + "/commands", summary="Order something of a run", status_code=201)
def post_run_command(call: CallDep, run: RunDep, wanted: RunOrder) -> CommandBody:
    """The job does it at its next step boundary, on all ranks at once: goes back, skips, lowers the
    learning rate, saves a checkpoint, ends the attempt. The order is the caller's yes too. What the
    job did not say that it can do, or would refuse by its own limits, is a 422. While an incident
    is open, what changes the training is ordered of the incident."""
    made = order(call, IncidentId(run, RUN_ITSELF), Ordered(**dict(wanted)), call.way())
    return read_body(call.services, made)


@router.post(_INCIDENT, summary="Order something else than what is proposed", status_code=201)
def post_incident_order(call: CallDep, incident: IncidentDep, wanted: IncidentOrder) -> CommandBody:
    """Another target, other batches, another learning rate, watching, stopping: it takes the place
    of the proposal that it names, by one act with the caller's yes."""
    try:
        made = order(call, incident, Ordered(**dict(wanted)), call.way())
    except RevisionChanged as changed:
        current = CommandId.parse(str(changed.extra["current"]["id"]))
        raise RevisionChanged(read_body(call.services, current, priced=True).model_dump()) from None
    return read_body(call.services, made)


@router.post(_INCIDENT + "/{command}/approve", summary="Approve a proposal")
def post_approval(call: CallDep, command: CommandDep, approval: Approval) -> CommandBody:
    """The run fetches the command and carries it out at a step boundary, on all ranks at once.
    What would be proposed now is found anew: a proposal that changed since is a 409 with the new
    revision, one that lost its reason is withdrawn."""
    return _decided(call, command, "approve", approval.revision)


@router.post(_INCIDENT + "/{command}/reject", summary="Reject a proposal")
def post_rejection(call: CallDep, command: CommandDep, rejection: Rejection) -> CommandBody:
    """Nothing is done. The policy proposes the same verb again once something new is known, after
    `ask_again_steps` at the earliest."""
    return _decided(call, command, "reject", rejection.revision, rejection.reason)


@router.post(_RUN + "/commands/{command}/reject", summary="Reject a command of a run")
def post_run_rejection(
    call: CallDep, run: RunDep, command: Number, rejection: Rejection
) -> CommandBody:
    """Nothing is done; what was approved and not fetched yet is taken back."""
    named = CommandId(IncidentId(run, RUN_ITSELF), command)
    return _decided(call, named, "reject", rejection.revision, rejection.reason)


def _decided(
    call: Call, command: CommandId, verdict: str, revision: int, reason: str = ""
) -> CommandBody:
    try:
        decide(
            call.services.engine, command, verdict, revision, call.caller.actor, reason, call.way(),
            silent_after=call.services.silent_after,
        )  # fmt: skip
    except RevisionChanged:
        raise RevisionChanged(read_body(call.services, command, priced=True).model_dump()) from None
    return read_body(call.services, command)


def read_body(services: Services, command: CommandId, *, priced: bool = False) -> CommandBody:
    """A command as it stands now; `priced`: with its cost, for whoever has to decide anew. Raise
    `NotFound` if there is none."""
    pace = None
    with services.snapshot() as connection:
        row = read_command(connection, command)
        if priced and not command.of_run:
            pace = read_pace(connection, read_incident(connection, command.incident))
        return command_body(row, command_revisions_of(connection, [row]), pace)
