"""The policy of one run: its own where it has one, else its project's."""

from __future__ import annotations

from fastapi import APIRouter

from spikeguard_server.access.grants import drop_run_policy, put_run_policy
from spikeguard_server.http.bodies.access import PolicyBody, RunPolicyWanted
from spikeguard_server.http.dependencies import CallerDep, ReasonAsked, RunDep, ServicesDep
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.http.routes.policy import policy_body
from spikeguard_server.http.routes.tokens import actor

router = APIRouter(tags=["policy"])
PATH = "/v1/runs/{project}/{name}/policy"


@router.get(PATH, summary="The policy in force for a run", response_model=PolicyBody)
def get_run_policy(services: ServicesDep, run: RunDep) -> JsonReply:
    """`scope` says whose it is."""
    with services.snapshot() as connection:
        return JsonReply(policy_body(connection, run.project, run.name))


@router.put(PATH, summary="Put a policy in force for a run alone", response_model=PolicyBody)
def replace_run_policy(
    services: ServicesDep, caller: CallerDep, run: RunDep, wanted: RunPolicyWanted
) -> JsonReply:
    """What is left out is what the project's policy says now, written out: later changes of that
    one no longer reach this run. The kill switch stays the project's."""
    with services.engine.begin() as connection:
        put_run_policy(connection, run, wanted.policy, actor(caller), wanted.version, wanted.reason)
        return JsonReply(policy_body(connection, run.project, run.name))


@router.delete(
    PATH, summary="Let a run follow its project's policy again", response_model=PolicyBody
)
def remove_run_policy(
    services: ServicesDep, caller: CallerDep, run: RunDep, reason: ReasonAsked = None
) -> JsonReply:
    """Proposals made before keep the policy that they name."""
    with services.engine.begin() as connection:
        drop_run_policy(connection, run, actor(caller), reason)
        return JsonReply(policy_body(connection, run.project, run.name))
