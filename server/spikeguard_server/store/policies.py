"""The policy in force: a versioned row a project, and one a run where a run has its own.

A version, once written, never changes; every proposal names the one it was made by and whose that
is. The kill switch is the project's: no policy of a run throws or lifts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import distinct_on

from spikeguard_core.policy.settings import (
    DEFAULT_POLICY,
    Policy,
    PolicyScope,
    policy_from_mapping,
    policy_to_mapping,
)
from spikeguard_server.store.engine import Prepared
from spikeguard_server.store.tables.core import FLEET, audit, policies, projects, run_policies

_P, _R, _U = policies.c, run_policies.c, audit.c
_ONE: Final = sql.select(sql.literal(1).label("one")).subquery("one")  # a row to join to
_O = _ONE.c  # made before threads share it


def _in_force() -> Prepared:
    at = sql.bindparam("at", type_=sql.DateTime(timezone=True))
    p, r = (
        sql.select(c.version, c.document)
        .where(whose, sql.func.coalesce(c.at <= at, sql.true()))
        .order_by(c.version.desc())
        .limit(1)
        .subquery()
        for c, whose in (
            (_P, _P.project == sql.bindparam("of")), (_R, _R.run_id == sql.bindparam("key")),
        )
    )  # fmt: skip
    both = _ONE.outerjoin(p, sql.true()).outerjoin(r, sql.true())
    return Prepared(sql.select(*p.c, *r.c).select_from(both))


_IN_FORCE: Final = _in_force()
MAX_PROJECTS: Final = 200  # whose switches are shown
_SWITCHED: Final = "policy.halted"


def policy_of(
    connection: sql.Connection, project: str, run_id: UUID | None = None,
    at: datetime | None = None,
) -> Policy:  # fmt: skip
    """The policy in force, now or `at` a time: the run's own, else that of `project`, else the
    built-in one, which is version 1."""
    (row,) = _IN_FORCE.rows(connection, of=project, key=run_id, at=at)
    version, document, own_version, own_document = row
    found = DEFAULT_POLICY
    if version is not None:
        found = replace(policy_from_mapping(document), version=version)
    if own_document is None:
        return found
    policy = policy_from_mapping(own_document)
    return replace(policy, version=own_version, scope=PolicyScope.RUN, halted=found.halted)


def halted_since(connection: sql.Connection, project: str, moment: datetime) -> bool:
    """Whether the kill switch of `project` is on, or was lifted after `moment`: what was approved
    before that was approved before the switch was thrown, or while it was."""
    after = policies.alias()
    lifted = sql.exists().where(
        after.c.project == _P.project, after.c.version == _P.version + 1, after.c.at < moment
    )
    on = _P.document["halted"].as_boolean()
    query = sql.select(sql.exists().where(_P.project == project, on, ~lifted))
    return bool(connection.execute(query).scalar_one())


def lock_policy(connection: sql.Connection, project: str) -> None:
    """Let nobody else write the project's policy until this transaction ends."""
    key = sql.func.hashtextextended(f"policy/{project}", 0)
    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(key)))


def write_policy(connection: sql.Connection, project: str, policy: Policy, actor: str) -> Policy:
    """Put `policy` in force for `project` under the next version, which it comes back with."""
    lock_policy(connection, project)
    version = policy_of(connection, project).version + 1
    written = replace(policy, version=version, scope=PolicyScope.PROJECT)
    connection.execute(
        sql.insert(policies).values(
            project=project, version=version, document=policy_to_mapping(written),
            at=sql.func.clock_timestamp(), actor=str(actor),
        )
    )  # fmt: skip
    return written


def write_run_policy(
    connection: sql.Connection, run_id: UUID, policy: Policy | None, actor: str
) -> int:
    """Put `policy` in force for the run, or its project's again if it is None; the version.

    Under the run's lock.
    """
    newest = sql.select(sql.func.max(_R.version)).where(_R.run_id == run_id)
    version = (connection.scalar(newest) or 0) + 1
    document = sql.null() if policy is None else policy_to_mapping(replace(policy, version=version))
    connection.execute(
        sql.insert(run_policies).values(
            run_id=run_id, version=version, document=document, actor=str(actor),
            at=sql.func.clock_timestamp(),
        )
    )  # fmt: skip
    return version


@dataclass(frozen=True, slots=True)
class Switch:
    """The kill switch of a project. `at`, `by` and `reason` say who threw it, where it is on."""

    project: str
    halted: bool
    at: datetime | None = None
    by: str | None = None
    reason: str | None = None


def read_switches(connection: sql.Connection, project: str | None) -> list[Switch]:
    """The kill switch of each project, by name: thrown ones first, with who threw them and why."""
    newest = (
        sql.select(_P.project, _P.document)
        .ext(distinct_on(_P.project))
        .order_by(_P.project, _P.version.desc())
    ).subquery()
    on = sql.func.coalesce(newest.c.document["halted"].as_boolean(), sql.false())
    query = (
        sql.select(projects.c.name, on.label("halted"))
        .outerjoin(newest, newest.c.project == projects.c.name)
        .order_by(on.desc(), projects.c.name)
        .limit(MAX_PROJECTS)
    )
    if project is not None:
        query = query.where(projects.c.name == project)
    found = connection.execute(query).all()
    thrown = _thrown(connection, [row.name for row in found if row.halted])
    return [thrown.get(row.name, Switch(row.name, row.halted)) for row in found]


def _thrown(connection: sql.Connection, names: Sequence[str]) -> dict[str, Switch]:
    """The newest time that each of these was thrown."""
    if not names:
        return {}
    query = (
        sql.select(_U.project, _U.at, _U.actor, _U.reason)
        .ext(distinct_on(_U.project))
        .where(_U.run_id == FLEET, _U.action == _SWITCHED, _U.project.in_(names))
        .order_by(_U.project, _U.number.desc())
    )
    rows = connection.execute(query)
    return {row.project: Switch(row.project, True, row.at, row.actor, row.reason) for row in rows}
