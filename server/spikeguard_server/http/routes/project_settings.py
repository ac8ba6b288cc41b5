"""What a project sets: its policy and kill switch, a run's own policy, channels, silences."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sql
from fastapi import APIRouter, Path
from pydantic import AfterValidator, Field, StringConstraints

from spikeguard_core.notification.channel import Channel, ChannelKind
from spikeguard_core.notification.delivery import Result
from spikeguard_core.notification.topics import About, Topic
from spikeguard_core.policy.settings import PolicyScope, policy_to_mapping
from spikeguard_protocol import Kind, RunId
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.access.grants import put_policy, put_run_policy, throw_switch
from spikeguard_server.access.person_names import MAX_PERSON
from spikeguard_server.http.bodies.run_shapes import ItemList, NameText, Reason, ReasonGiven, Shape
from spikeguard_server.http.dependencies import (
    Call,
    CallDep,
    Number,
    OneProject,
    PageDep,
    Project,
    RunDep,
)
from spikeguard_server.http.responses import BodyRoute
from spikeguard_server.notify.notifier import ChannelTested, send_test
from spikeguard_server.notify.upkeep import drop_channel, put_channel, silence, speak_again
from spikeguard_server.store.channels import channels_of, read_channel, read_silences
from spikeguard_server.store.conversations import list_deliveries
from spikeguard_server.store.paging import Row
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.runs import read_policy_row
from spikeguard_server.store.runs import run_named


class PolicyBody(Shape):
    """The policy in force for a project, or for one run of it; without an author it is the one the
    server comes with."""

    project: str
    run: str | None = Field(description="null: asked for the project itself")
    scope: PolicyScope = Field(description="whose it is: the run's own, or its project's")
    version: int
    created_at: datetime | None
    created_by: str | None
    policy: dict[str, Any]


class RunPolicyWanted(Shape):
    """A policy of the run's own. What is left out is what its project's says now."""

    policy: dict[str, Any]
    reason: ReasonGiven = None


class PolicyWanted(RunPolicyWanted):
    """A policy to put in force."""

    project: NameText


class SwitchWanted(Shape):
    """Throw or lift the kill switch of a project, for a reason that the record keeps."""

    project: NameText
    reason: Reason


policies = APIRouter(tags=["policy"], route_class=BodyRoute)


def policy_body(connection: sql.Connection, project: str, name: str | None = None) -> PolicyBody:
    """The policy in force for a project, or for run `name` of it."""
    key = None if name is None else run_named(connection, RunId(project, name)).run_id
    policy = policy_of(connection, project, key)
    row = read_policy_row(connection, policy, project, key)
    return PolicyBody.of(
        policy,
        project=project,
        run=name,
        created_at=row.at if row else None,
        created_by=row.actor if row else None,
        policy=policy_to_mapping(policy),
    )


@policies.get("/v1/policy", summary="The policy in force")
def get_policy(call: CallDep, project: OneProject) -> PolicyBody:
    """Every threshold by which an incident becomes a proposal, with its unit in its name."""
    return policy_body(call.connection, project)


@policies.post("/v1/policy/halt", summary="Throw the kill switch")
def halt(call: CallDep, wanted: SwitchWanted) -> PolicyBody:
    """From now on nothing is approved and nothing delivered in the project, and what was approved
    and not delivered is taken back. What a run was given before, it may still carry out."""
    return throw(call, wanted, halted=True)


@policies.post("/v1/policy/resume", summary="Lift the kill switch")
def resume(call: CallDep, wanted: SwitchWanted) -> PolicyBody:
    """Proposals are made anew; nothing that was taken back comes back by itself."""
    return throw(call, wanted, halted=False)


def throw(call: Call, wanted: SwitchWanted, *, halted: bool) -> PolicyBody:
    """Throw the kill switch, or lift it."""
    call.caller.check_project(wanted.project)
    with call.services.engine.begin() as connection:
        throw_switch(
            connection, wanted.project, halted=halted, reason=wanted.reason, by=call.caller.actor
        )
        return policy_body(connection, wanted.project)


@policies.put("/v1/policy", summary="Put a policy in force")
def replace_policy(call: CallDep, wanted: PolicyWanted) -> PolicyBody:
    """What is left out takes its default. Proposals made before keep the version they name."""
    call.caller.check_project(wanted.project)
    put_policy(call.connection, wanted.project, wanted.policy, call.caller.actor, wanted.reason)
    return policy_body(call.connection, wanted.project)


_OF_RUN = "/v1/runs/{project}/{name}/policy"


@policies.get(_OF_RUN, summary="The policy in force for a run")
def get_run_policy(call: CallDep, run: RunDep) -> PolicyBody:
    """`scope` says whose it is."""
    return policy_body(call.connection, run.project, run.name)


@policies.put(_OF_RUN, summary="Put a policy in force for a run alone")
def replace_run_policy(call: CallDep, run: RunDep, wanted: RunPolicyWanted) -> PolicyBody:
    """What is left out is what the project's policy says now, written out: later changes of that
    one no longer reach this run. The kill switch stays the project's."""
    put_run_policy(call.connection, run, wanted.policy, call.caller.actor, wanted.reason)
    return policy_body(call.connection, run.project, run.name)


@policies.delete(_OF_RUN, summary="Let a run follow its project's policy again")
def remove_run_policy(call: CallDep, run: RunDep, reason: ReasonGiven = None) -> PolicyBody:
    """Proposals made before keep the policy that they name."""
    put_run_policy(call.connection, run, None, call.caller.actor, reason)
    return policy_body(call.connection, run.project, run.name)


TargetText = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$"
    ),
]
IN_ORDER = AfterValidator(sorted)  # so that another order is no change
RunPattern = Annotated[str, Field(pattern=rf"^({NAME_PATTERN.pattern})?\*?$", max_length=65)]


class ChannelRules(Shape):
    """Where a channel leads, and what is told there."""

    kind: ChannelKind
    target: dict[str, TargetText] = Field(default={}, max_length=4)
    about: Annotated[list[About], IN_ORDER] = Field(default=sorted(About))
    kinds: Annotated[list[Kind], IN_ORDER] = Field(default=sorted(Kind))
    runs: list[RunPattern] = Field(default=[], max_length=100)
    level: int = Field(default=0, ge=0, le=5)
    cooldown_s: float = Field(default=120.0, ge=0, le=86_400)
    links: bool = False
    person: str | None = Field(default=None, max_length=MAX_PERSON)
    enabled: bool = True


class ChannelWanted(ChannelRules):
    """A channel to write. What is left out takes its default; without `target` it keeps its own."""

    reason: ReasonGiven = None

    def named(self, project: str, name: str) -> Channel:
        """The channel of that name."""
        return Channel(project, name, **self.model_dump(exclude={"reason"}))


class ChannelBody(ChannelRules):
    """A channel, of its target what may be shown."""

    project: str
    name: str
    changed_at: datetime
    changed_by: str


class DeliveryBody(Shape):
    """A message that was sent, or why none was."""

    at: datetime
    project: str
    run: str | None = Field(description="null for a test")
    incident: int | None
    channel: str | None = Field(description="null where there was none to tell")
    topics: list[Topic]
    result: Result
    reason: str
    took_ms: float | None


class SilenceScope(Shape):
    """Of what people are not to be told, and why. Without a run it covers the project."""

    project: NameText
    run: NameText | None = None
    incident: int | None = Field(default=None, ge=1, le=2**31 - 1)
    reason: Reason


class SilenceWanted(SilenceScope):
    """A wish not to be told. A later begin makes it a maintenance window."""

    begins_in_s: float = Field(default=0.0, ge=0, le=90 * 86_400)
    lasts_s: float = Field(ge=1, le=30 * 86_400)


class SilenceBody(SilenceScope):
    """A silence or a maintenance window."""

    number: int
    begins_at: datetime
    ends_at: datetime
    created_at: datetime
    created_by: str


channels = APIRouter(tags=["notifications"], route_class=BodyRoute)
ChannelName = Annotated[NameText, Path()]


def _body(channel: Channel, row: Row) -> ChannelBody:
    return ChannelBody.of(row, channel, target=channel.shown_target(), **channel.rules())


@channels.get("/v1/channels", summary="List channels")
def get_channels(call: CallDep, project: OneProject) -> ItemList[ChannelBody]:
    """Where the people of a project are told, without the secrets of the targets."""
    found = channels_of(call.connection, project)
    return ItemList(items=[_body(*one) for one in found])


@channels.put("/v1/channels/{project}/{channel}", summary="Write a channel")
def replace_channel(
    call: CallDep, project: Project, channel: ChannelName, wanted: ChannelWanted
) -> ChannelBody:
    """Makes it or replaces its rules. The target is told to nobody from then on."""
    put_channel(call.connection, wanted.named(project, channel), call.caller.actor, wanted.reason)
    return _body(*read_channel(call.connection, project, channel))


@channels.delete("/v1/channels/{project}/{channel}", summary="Remove a channel", status_code=204)
def delete_channel(
    call: CallDep, project: Project, channel: ChannelName, reason: ReasonGiven = None
) -> None:
    """Nothing is told there any more; what was told stays in the log."""
    drop_channel(call.connection, project, channel, call.caller.actor, reason)


@channels.post("/v1/channels/{project}/{channel}/test", summary="Test a channel")
def test_channel(call: CallDep, project: Project, channel: ChannelName) -> ChannelTested:
    """Sends a message that says that it is a test, now, and waits for what becomes of it."""
    services = call.services
    return send_test(services.engine, services.settings, project, channel, call.caller.actor)


@channels.get("/v1/deliveries", summary="What was told")
def get_deliveries(call: CallDep, project: OneProject, page: PageDep) -> ItemList[DeliveryBody]:
    """Every message of a project, sent or not, with the reason. Newest first."""
    found, more = list_deliveries(call.connection, project, page)
    return ItemList[DeliveryBody].of(items=found, next_cursor=more)


@channels.get("/v1/silences", summary="List silences")
def get_silences(call: CallDep, project: OneProject) -> ItemList[SilenceBody]:
    """Silences and maintenance windows in force or to come, the first to end first."""
    found = read_silences(call.connection, project)
    return ItemList[SilenceBody].of(items=found)


@channels.post("/v1/silences", summary="Silence something", status_code=201)
def post_silence(call: CallDep, wanted: SilenceWanted) -> SilenceBody:
    """Nobody is told until it ends; what is still true then is told."""
    call.caller.check_project(wanted.project)
    row = silence(call.connection, by=call.caller.actor, **wanted.model_dump())
    return SilenceBody.model_validate(row)


@channels.delete("/v1/silences/{project}/{number}", summary="End a silence", status_code=204)
def delete_silence(
    call: CallDep, project: Project, number: Number, reason: ReasonGiven = None
) -> None:
    """What it held is told at once, if it is still true."""
    speak_again(call.connection, project, number, call.caller.actor, reason)
