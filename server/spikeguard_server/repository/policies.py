"""The policy in force, a versioned row a project.

Law: a version, once written, never changes; every proposal names the one it was made by.
"""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sql

from spikeguard_server import tables
from spikeguard_server.domain.policy import (
    DEFAULT_POLICY,
    Policy,
    policy_from_mapping,
    policy_to_mapping,
)


def policy_of(connection: sql.Connection, project: str) -> Policy:
    """The policy of `project`; the built-in one, version 1, where nobody wrote any."""
    c = tables.policies.c
    row = connection.execute(
        sql.select(c.version, c.document)
        .where(c.project == project)
        .order_by(c.version.desc())
        .limit(1)
    ).one_or_none()
    if row is None:
        return DEFAULT_POLICY
    return replace(policy_from_mapping(row.document), version=row.version)


def lock_policy(connection: sql.Connection, project: str) -> None:
    """Let nobody else write the project's policy until this transaction ends."""
    key = sql.func.hashtextextended(f"policy/{project}", 0)
    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(key)))


def write_policy(connection: sql.Connection, project: str, policy: Policy, actor: str) -> Policy:
    """Put `policy` in force for `project` under the next version, which it comes back with."""
    lock_policy(connection, project)
    version = policy_of(connection, project).version + 1
    written = replace(policy, version=version)
    connection.execute(
        sql.insert(tables.policies).values(
            project=project, version=version, document=policy_to_mapping(written),
            at=sql.func.clock_timestamp(), actor=actor,
        )
    )  # fmt: skip
    return written
