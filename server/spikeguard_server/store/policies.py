"""The policy in force: a versioned row of a project, and of a run that has its own.

A version, once written, never changes; every proposal names the one it was made by and whose that
is. The kill switch is the project's: no policy of a run throws or lifts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from spikeguard_server.store.paging import Row
from spikeguard_server.store.tables.core import FLEET, audit, policies, projects

_P, _U = policies.c, audit.c
_OF_PROJECT: Final = _P.run_id == FLEET
_AT: Final = sql.bindparam("at", type_=sql.DateTime(timezone=True))
_IN_FORCE: Final = Prepared(
    sql.select(_P.run_id, _P.version, _P.document)
    .ext(distinct_on(_P.run_id))
    .where(_P.project == sql.bindparam("of"), _OF_PROJECT | (_P.run_id == sql.bindparam("key")))
    .where(sql.func.coalesce(_P.at <= _AT, sql.true()))
    .order_by(_P.run_id, _P.version.desc())
)
MAX_PROJECTS: Final = 200  # whose switches are shown
_SWITCHED: Final = "policy.halted"


def policy_of(
    connection: sql.Connection, project: str, run_id: UUID | None = None,
    at: datetime | None = None,
) -> Policy:  # fmt: skip
    """The policy in force, now or `at` a time: the run's own, else that of `project`, else the
    built-in one, which is version 1."""
    rows = {row.run_id: row for row in _IN_FORCE.rows(connection, of=project, key=run_id, at=at)}
    found, own = DEFAULT_POLICY, rows.get(run_id)
    if (of_project := rows.get(FLEET)) is not None:
        found = replace(policy_from_mapping(of_project.document), version=of_project.version)
    if own is None or own.document is None:
        return found
    policy = policy_from_mapping(own.document)
    return replace(policy, version=own.version, scope=PolicyScope.RUN, halted=found.halted)


def halted_since(connection: sql.Connection, project: str, moment: datetime) -> bool:
    """Whether the kill switch of `project` is on, or was lifted after `moment`: what was approved
    before that was approved before the switch was thrown, or while it was."""
    after = policies.alias()
    lifted = sql.exists().where(
        after.c.project == _P.project, after.c.run_id == _P.run_id,
        after.c.version == _P.version + 1, after.c.at < moment,
    )  # fmt: skip
    on = _P.document["halted"].as_boolean()
    query = sql.select(sql.exists().where(_P.project == project, _OF_PROJECT, on, ~lifted))
    return bool(connection.execute(query).scalar_one())


def write_policy(
    connection: sql.Connection, project: str, policy: Policy | None, actor: str,
    run_id: UUID = FLEET,
) -> Policy:  # fmt: skip
    """Put `policy` in force for `project`, or under its lock for a run of it (None: its project's
    again); what is in force then, under the next version."""
    first = DEFAULT_POLICY.version if run_id == FLEET else 0
    newest = sql.select(sql.func.coalesce(sql.func.max(_P.version), first) + 1)
    mine = newest.where(_P.project == project, _P.run_id == run_id)
    connection.execute(
        sql.insert(policies).values(
            project=project, run_id=run_id, version=mine.scalar_subquery(), actor=str(actor),
            document=sql.null() if policy is None else policy_to_mapping(policy),
            at=sql.func.clock_timestamp(),
        )
    )  # fmt: skip
    return policy_of(connection, project, run_id)


def read_switches(connection: sql.Connection, project: str | None) -> Sequence[Row]:
    """The kill switch of each project, by name: thrown ones first, with who threw them and why, as
    `project`, `halted`, `at`, `by`, `reason`."""
    newest = (
        sql.select(_P.project, _P.document)
        .ext(distinct_on(_P.project))
        .where(_OF_PROJECT)
        .order_by(_P.project, _P.version.desc())
    ).subquery()
    on = sql.func.coalesce(newest.c.document["halted"].as_boolean(), sql.false())
    thrown = (
        sql.select(_U.at, _U.actor.label("by"), _U.reason)
        .where(_U.run_id == FLEET, _U.action == _SWITCHED, _U.project == projects.c.name)
        .order_by(_U.number.desc())
        .limit(1)
        .lateral()
    )
    query = (
        sql.select(projects.c.name.label("project"), on.label("halted"), thrown)
        .outerjoin(newest, newest.c.project == projects.c.name)
        .outerjoin(thrown, on)
        .order_by(on.desc(), projects.c.name)
        .limit(MAX_PROJECTS)
    )
    if project is not None:
        query = query.where(projects.c.name == project)
    return connection.execute(query).all()
