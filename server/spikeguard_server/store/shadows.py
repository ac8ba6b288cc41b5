"""Decisions that the shadow would have made: one a command at most, never changed.

Law: written under the run's lock, in the transaction that would have approved.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_protocol import Verb
from spikeguard_server.domain.policy.settings import Policy
from spikeguard_server.store.tables.notices import shadow_decisions

_S = shadow_decisions.c


def shadow_ages(connection: sql.Connection, run_id: UUID, verb: Verb, now: datetime) -> list[float]:
    """Seconds since the shadow's decisions about `verb` of the last day."""
    since = now - timedelta(days=1)
    rows = connection.execute(
        sql.select(_S.at).where(_S.run_id == run_id, _S.verb == verb.value, _S.at > since)
    )
    return [max(0.0, (now - at).total_seconds()) for at in rows.scalars()]


def add_shadow(
    connection: sql.Connection,
    run_id: UUID,
    *,
    incident: int,
    command: int,
    verb: Verb,
    revision: int,
    step: int,
    cost_steps: int,
    policy: Policy,
    reason: str,
    now: datetime,
) -> None:
    """Write a decision down; the first about a command stands."""
    connection.execute(
        insert(shadow_decisions)
        .values(
            run_id=run_id, incident=incident, command=command, verb=verb.value,
            revision=revision, step=step, cost_steps=cost_steps, policy_version=policy.version,
            policy_scope=policy.scope.value, reason=reason, at=now,
        )
        .on_conflict_do_nothing()
    )  # fmt: skip


def has_shadow(connection: sql.Connection, run_id: UUID, incident: int, command: int) -> bool:
    """Whether the shadow has decided about a command."""
    mine = sql.and_(_S.run_id == run_id, _S.incident == incident, _S.command == command)
    return bool(connection.scalar(sql.select(sql.exists().where(mine))))
