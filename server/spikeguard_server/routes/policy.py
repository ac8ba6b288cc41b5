"""The policy in force: read by everybody who looks, written by admins."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sql
from fastapi import APIRouter, Query

from spikeguard_protocol import DEFAULT_PROJECT
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.domain.policy import policy_to_mapping
from spikeguard_server.errors import Conflict
from spikeguard_server.grants import put_policy
from spikeguard_server.repository.policies import policy_of
from spikeguard_server.repository.reading_runs import read_policy_row
from spikeguard_server.routes.access_shapes import PolicyBody, PolicyWanted
from spikeguard_server.routes.answers import Answer, refusals
from spikeguard_server.routes.door import CallerDep, ServicesDep
from spikeguard_server.routes.tokens import actor

router = APIRouter(tags=["policy"])
ProjectAsked = Annotated[str, Query(pattern=f"^{NAME_PATTERN.pattern}$")]


def _body(connection: sql.Connection, project: str) -> PolicyBody:
    policy = policy_of(connection, project)
    row = read_policy_row(connection, project)
    return PolicyBody(
        project=project,
        version=policy.version,
        created_at=row.at if row else None,
        created_by=row.actor if row else None,
        policy=policy_to_mapping(policy),
    )


@router.get(
    "/v1/policy", summary="The policy in force", response_model=PolicyBody, response_class=Answer
)
def get_policy(
    services: ServicesDep, caller: CallerDep, project: ProjectAsked = DEFAULT_PROJECT
) -> Answer:
    """Every threshold by which an incident becomes a proposal, with its unit in its name."""
    caller.check_project(project)
    with services.engine.connect() as connection:
        return Answer(_body(connection, project))


@router.put(
    "/v1/policy",
    summary="Put a policy in force",
    response_model=PolicyBody,
    response_class=Answer,
    responses=refusals(
        Conflict("Version 2 is in force, not 1", "Read it again, then change that one", current=2)
    ),
)
def replace_policy(services: ServicesDep, caller: CallerDep, wanted: PolicyWanted) -> Answer:
    """What is left out takes its default. Proposals made before keep the version they name."""
    caller.check_project(wanted.project)
    with services.engine.begin() as connection:
        put_policy(connection, wanted.project, wanted.policy, actor(caller), wanted.version)
        return Answer(_body(connection, wanted.project))
