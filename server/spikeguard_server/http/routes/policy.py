"""The policy in force, of a project or of one run of it."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sql
from fastapi import APIRouter, Query

from spikeguard_core.policy.settings import policy_to_mapping
from spikeguard_protocol import DEFAULT_PROJECT, RunId
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.access.grants import (
    drop_run_policy,
    put_policy,
    put_run_policy,
    throw_switch,
)
from spikeguard_server.http.bodies.access import (
    PolicyBody,
    PolicyWanted,
    RunPolicyWanted,
    SwitchWanted,
)
from spikeguard_server.http.dependencies import (
    CallerDep,
    ReasonAsked,
    RunDep,
    Services,
    ServicesDep,
    person_of,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.identity.permissions import Caller
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.runs import read_policy_row

router = APIRouter(tags=["policy"])
ProjectAsked = Annotated[str, Query(pattern=f"^{NAME_PATTERN.pattern}$")]


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


@router.get("/v1/policy", summary="The policy in force", response_model=PolicyBody)
def get_policy(
    services: ServicesDep, caller: CallerDep, project: ProjectAsked = DEFAULT_PROJECT
) -> JsonReply:
    """Every threshold by which an incident becomes a proposal, with its unit in its name."""
    caller.check_project(project)
    with services.snapshot() as connection:
        return JsonReply(policy_body(connection, project))


@router.post("/v1/policy/halt", summary="Throw the kill switch", response_model=PolicyBody)
def halt(services: ServicesDep, caller: CallerDep, wanted: SwitchWanted) -> JsonReply:
    """From now on nothing is approved and nothing delivered in the project, and what was approved
    and not delivered is taken back. What a run was given before, it may still carry out."""
    return _switch(services, caller, wanted, halted=True)


@router.post("/v1/policy/resume", summary="Lift the kill switch", response_model=PolicyBody)
def resume(services: ServicesDep, caller: CallerDep, wanted: SwitchWanted) -> JsonReply:
    """Proposals are made anew; nothing that was taken back comes back by itself."""
    return _switch(services, caller, wanted, halted=False)


def _switch(services: Services, caller: Caller, wanted: SwitchWanted, *, halted: bool) -> JsonReply:
    caller.check_project(wanted.project)
    with services.engine.begin() as connection:
        throw_switch(
            connection, wanted.project, halted=halted, reason=wanted.reason, by=person_of(caller)
        )
        return JsonReply(policy_body(connection, wanted.project))


@router.put("/v1/policy", summary="Put a policy in force", response_model=PolicyBody)
def replace_policy(services: ServicesDep, caller: CallerDep, wanted: PolicyWanted) -> JsonReply:
    """What is left out takes its default. Proposals made before keep the version they name."""
    caller.check_project(wanted.project)
    with services.engine.begin() as connection:
        put_policy(
            connection, wanted.project, wanted.policy, caller.actor, wanted.version,
            wanted.reason,
        )  # fmt: skip
        return JsonReply(policy_body(connection, wanted.project))


_OF_RUN = "/v1/runs/{project}/{name}/policy"


@router.get(_OF_RUN, summary="The policy in force for a run", response_model=PolicyBody)
def get_run_policy(services: ServicesDep, run: RunDep) -> JsonReply:
    """`scope` says whose it is."""
    with services.snapshot() as connection:
        return JsonReply(policy_body(connection, run.project, run.name))


@router.put(_OF_RUN, summary="Put a policy in force for a run alone", response_model=PolicyBody)
def replace_run_policy(
    services: ServicesDep, caller: CallerDep, run: RunDep, wanted: RunPolicyWanted
) -> JsonReply:
    """What is left out is what the project's policy says now, written out: later changes of that
    one no longer reach this run. The kill switch stays the project's."""
    with services.engine.begin() as connection:
        put_run_policy(connection, run, wanted.policy, caller.actor, wanted.version, wanted.reason)
        return JsonReply(policy_body(connection, run.project, run.name))


@router.delete(
    _OF_RUN, summary="Let a run follow its project's policy again", response_model=PolicyBody
)
def remove_run_policy(
    services: ServicesDep, caller: CallerDep, run: RunDep, reason: ReasonAsked = None
) -> JsonReply:
    """Proposals made before keep the policy that they name."""
    with services.engine.begin() as connection:
        drop_run_policy(connection, run, caller.actor, reason)
        return JsonReply(policy_body(connection, run.project, run.name))
