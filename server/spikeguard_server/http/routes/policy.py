"""The policy in force, of a project or of one run of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sql
from fastapi import APIRouter
from pydantic import Field

from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_core.policy.settings import PolicyScope, policy_to_mapping
from spikeguard_protocol import RunId
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.access.grants import put_policy, put_run_policy, throw_switch
from spikeguard_server.http.bodies.run_shapes import ReasonGiven, Shape
from spikeguard_server.http.dependencies import (
    Call,
    CallDep,
    OneProject,
    ReasonAsked,
    RunDep,
    ServicesDep,
)
from spikeguard_server.http.responses import BodyRoute
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.runs import read_policy_row


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

    project: str = Field(pattern=f"^{NAME_PATTERN.pattern}$")


class SwitchWanted(Shape):
    """Throw or lift the kill switch of a project, for a reason that the record keeps."""

    project: str = Field(pattern=f"^{NAME_PATTERN.pattern}$")
    reason: str = Field(min_length=1, max_length=MAX_REASON)


router = APIRouter(tags=["policy"], route_class=BodyRoute)


def policy_body(connection: sql.Connection, project: str, name: str | None = None) -> PolicyBody:
    """The policy in force for a project, or for run `name` of it."""
    key = None if name is None else existing_run(connection, RunId(project, name))
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


@router.get("/v1/policy", summary="The policy in force")
def get_policy(services: ServicesDep, project: OneProject) -> PolicyBody:
    """Every threshold by which an incident becomes a proposal, with its unit in its name."""
    with services.snapshot() as connection:
        return policy_body(connection, project)


@router.post("/v1/policy/halt", summary="Throw the kill switch")
def halt(call: CallDep, wanted: SwitchWanted) -> PolicyBody:
    """From now on nothing is approved and nothing delivered in the project, and what was approved
    and not delivered is taken back. What a run was given before, it may still carry out."""
    return throw(call, wanted, halted=True)


@router.post("/v1/policy/resume", summary="Lift the kill switch")
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


@router.put("/v1/policy", summary="Put a policy in force")
def replace_policy(call: CallDep, wanted: PolicyWanted) -> PolicyBody:
    """What is left out takes its default. Proposals made before keep the version they name."""
    call.caller.check_project(wanted.project)
    with call.services.engine.begin() as connection:
        put_policy(connection, wanted.project, wanted.policy, call.caller.actor, wanted.reason)
        return policy_body(connection, wanted.project)


_OF_RUN = "/v1/runs/{project}/{name}/policy"


@router.get(_OF_RUN, summary="The policy in force for a run")
def get_run_policy(services: ServicesDep, run: RunDep) -> PolicyBody:
    """`scope` says whose it is."""
    with services.snapshot() as connection:
        return policy_body(connection, run.project, run.name)


@router.put(_OF_RUN, summary="Put a policy in force for a run alone")
def replace_run_policy(call: CallDep, run: RunDep, wanted: RunPolicyWanted) -> PolicyBody:
    """What is left out is what the project's policy says now, written out: later changes of that
    one no longer reach this run. The kill switch stays the project's."""
    with call.services.engine.begin() as connection:
        put_run_policy(connection, run, wanted.policy, call.caller.actor, wanted.reason)
        return policy_body(connection, run.project, run.name)


@router.delete(_OF_RUN, summary="Let a run follow its project's policy again")
def remove_run_policy(call: CallDep, run: RunDep, reason: ReasonAsked = None) -> PolicyBody:
    """Proposals made before keep the policy that they name."""
    with call.services.engine.begin() as connection:
        put_run_policy(connection, run, None, call.caller.actor, reason)
        return policy_body(connection, run.project, run.name)
