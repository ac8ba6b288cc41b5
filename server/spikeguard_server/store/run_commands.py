"""Commands of a run itself: a person ordered them without an incident.

Invariants: the caller holds the run's lock. They lie with the commands of incidents, under
`RUN_ITSELF`, and live by the same table of moves. No number comes twice under a run's name.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.policy.settings import Policy
from spikeguard_protocol import (
    RUN_ITSELF,
    Action,
    CommandState,
    to_json,
    verb_of,
)
from spikeguard_server.store import audit
from spikeguard_server.store.commands import CommandRow, find_command
from spikeguard_server.store.runs import RunRow
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables import core as tables

MAX_RUN_COMMANDS: Final = 1000  # of a run
PROPOSE: Final = "propose"  # the audit's word for it
_C, _A = tables.commands.c, tables.audit.c


def count_run_commands(connection: sql.Connection, run_id: UUID) -> int:
    """How many were ordered of the run so far."""
    mine = sql.select(sql.func.count()).where(_C.run_id == run_id, _C.incident == RUN_ITSELF)
    return int(connection.execute(mine).scalar_one())


def _recorded(connection: sql.Connection, run: RunRow) -> int:
    """How many were ever ordered of a run of this name. The record outlives a deleted run, and a
    job's journal would take a second command of one number for the first."""
    mine = sql.select(sql.func.count()).where(
        _A.run_id == run.run_id, _A.action == PROPOSE,
        _A.incident == RUN_ITSELF,
    )  # fmt: skip
    return int(connection.execute(mine).scalar_one())


def create_run_command(
    connection: sql.Connection, run: RunRow, action: Action, *, person: str, reason: str,
    policy: Policy, now: datetime, expires_at: datetime, expires_at_step: int,
) -> CommandRow:  # fmt: skip
    """Write down what `person` orders; it waits for a yes like any other."""
    number = _recorded(connection, run) + 1
    verb = verb_of(action)
    connection.execute(
        sql.insert(tables.commands).values(
            run_id=run.run_id, incident=RUN_ITSELF, number=number, verb=verb.value,
            arguments=to_json(action), state=CommandState.PROPOSED.value, revision=1,
            reason=storable(reason), policy_version=policy.version,
            policy_scope=policy.scope.value, attempt=run.current_attempt, expires_at=expires_at,
            expires_at_step=expires_at_step, proposed_at=now, proposed_by=storable(person),
            automatic=False,
        )
    )  # fmt: skip
    command = find_command(connection, run.run_id, RUN_ITSELF, number)
    assert command is not None
    audit.append(
        connection, run.run_id, actor=person, action=PROPOSE, subject=command.public_id(run.id),
        incident=RUN_ITSELF, command=number,
        after=CommandState.PROPOSED.value, reason=f"{verb}: {reason}",
    )  # fmt: skip
    return command
