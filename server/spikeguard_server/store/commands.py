"""Commands and their revisions, between rows and the protocol's actions.

Law: a state changes only through `move`, which asks the domain's table and writes the audit in the
same breath. Arguments are stored as the protocol writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.lifecycle import command_life
from spikeguard_core.lifecycle.command_life import WAITING, CommandEvent
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import PastCommand
from spikeguard_protocol import (
    RUN_ITSELF,
    Action,
    CommandId,
    CommandState,
    IncidentId,
    RunId,
    from_json,
    to_json,
    verb_of,
)
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.store import audit
from spikeguard_server.store.order_notifier import notify
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables import core as tables


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A command as it stands."""

    incident: int
    number: int
    verb: str
    arguments: Any
    state: CommandState
    revision: int
    reason: str
    cause: str | None  # the diagnosis that it was put down to
    policy_version: int
    attempt: int  # the fence
    expires_at: datetime
    expires_at_step: int | None
    decided_at: datetime | None
    decided_by: str | None
    decided_step: int | None
    automatic: bool
    delivered_at: datetime | None
    applied_step: int | None
    proposed_at: datetime
    proposed_by: str | None  # whose it is; None: the policy's

    @property
    def action(self) -> Action:
        return action_of(self.arguments)

    def public_id(self, run: RunId) -> str:
        return str(CommandId(IncidentId(run, self.incident), self.number))

    @property
    def key(self) -> tuple[int, int]:
        return self.incident, self.number

    def valid(self, now: datetime, step: int | None) -> bool:
        """Whether it may still be approved or delivered."""
        if now >= self.expires_at:
            return False
        return self.expires_at_step is None or step is None or step < self.expires_at_step


_COLUMNS = [tables.commands.c[name] for name in CommandRow.__dataclass_fields__]


def action_of(arguments: Any) -> Action:
    """The action that stored arguments describe."""
    return cast(Action, from_json(Action, arguments, "arguments"))


def _row(row: Any) -> CommandRow:
    fields = dict(row._mapping)
    return CommandRow(**{**fields, "state": CommandState(row.state)})


def find_command(
    connection: sql.Connection, run_id: UUID, incident: int, number: int
) -> CommandRow | None:
    c = tables.commands.c
    row = connection.execute(
        sql.select(*_COLUMNS).where(c.run_id == run_id, c.incident == incident, c.number == number)
    ).one_or_none()
    return None if row is None else _row(row)


def action_at(
    connection: sql.Connection, run_id: UUID, command: CommandRow, revision: int
) -> Action | None:
    """What `revision` of `command` proposed; None where it has no such revision."""
    c = tables.command_revisions.c
    mine = (c.incident == command.incident) & (c.command == command.number)
    found = connection.scalar(
        sql.select(c.arguments).where(c.run_id == run_id, mine, c.number == revision)
    )
    return None if found is None else action_of(found)


def unfinished_commands(connection: sql.Connection, run_id: UUID) -> list[CommandRow]:
    """Proposed, approved and delivered commands of the run, oldest first."""
    return [_row(row) for row in connection.execute(_OPEN_COMMANDS, {"key": run_id})]


_C = tables.commands.c
_OPEN_COMMANDS = (
    sql.select(*_COLUMNS)
    .where(_C.run_id == sql.bindparam("key"))
    # As the index says it.
    .where(sql.text("state IN ('proposed', 'approved', 'delivered')"))
    .order_by(_C.incident, _C.number)
)


def commands_of(connection: sql.Connection, run_id: UUID, incident: int) -> list[CommandRow]:
    """Every command of one incident, oldest first."""
    rows = connection.execute(
        sql.select(*_COLUMNS)
        .where(_C.run_id == run_id, _C.incident == incident)
        .order_by(_C.number)
    )
    return [_row(row) for row in rows]


def past_commands(
    connection: sql.Connection, run_id: UUID, incident: int, now: datetime
) -> tuple[PastCommand, ...]:
    """What the policy is told: this incident's commands and the run's of the last two days."""
    recent = sql.or_(_C.incident == incident, _C.proposed_at > now - timedelta(days=2))
    of_incidents = _C.incident != RUN_ITSELF
    rows = connection.execute(
        sql.select(*_COLUMNS)
        .where(_C.run_id == run_id, recent, of_incidents)
        .order_by(_C.incident, _C.number)
    )
    return tuple(_past(_row(row), now) for row in rows)


def recent_commands(
    connection: sql.Connection, run_id: UUID, now: datetime
) -> tuple[PastCommand, ...]:
    """Every command of the run of the last two days, those of the run itself among them."""
    recent = sql.select(*_COLUMNS).where(
        _C.run_id == run_id, _C.proposed_at > now - timedelta(days=2)
    )
    rows = connection.execute(recent.order_by(_C.incident, _C.number))
    return tuple(_past(_row(row), now) for row in rows)


def _past(row: CommandRow, now: datetime) -> PastCommand:
    age = None if row.decided_at is None else max(0.0, (now - row.decided_at).total_seconds())
    return PastCommand(
        action=row.action,
        state=row.state,
        incident=row.incident,
        auto=row.automatic,
        applied_step=row.applied_step,
        decided_step=row.decided_step,
        decided_s_ago=age,
        cause=row.cause,
        ordered_by=row.proposed_by,
    )


def create_command(
    connection: sql.Connection,
    run_id: UUID,
    run: RunId,
    incident: int,
    action: Action,
    *,
    attempt: int,
    reason: str,
    policy: Policy,
    now: datetime,
    expires_at: datetime,
    expires_at_step: int | None,
    replaces: int | None,
    cause: str | None = None,
    person: Actor | None = None,
) -> CommandRow:
    """Propose `action` as the incident's next command; `person`: who orders it, if no policy."""
    i = tables.incidents.c
    number = connection.execute(
        sql.update(tables.incidents)
        .where(i.run_id == run_id, i.number == incident)
        .values(commands=i.commands + 1)
        .returning(i.commands)
    ).scalar_one()
    connection.execute(
        sql.insert(tables.commands).values(
            run_id=run_id, incident=incident, number=number, verb=verb_of(action).value,
            arguments=to_json(action), state=CommandState.PROPOSED.value, revision=1,
            reason=reason, cause=cause, policy_version=policy.version,
            policy_scope=policy.scope.value, attempt=attempt, replaces=replaces,
            expires_at=expires_at, expires_at_step=expires_at_step, proposed_at=now,
            automatic=False,
            proposed_by=None if person is None else storable(person),
        )
    )  # fmt: skip
    _add_revision(connection, run_id, incident, number, 1, now, action, reason, policy)
    command = find_command(connection, run_id, incident, number)
    assert command is not None
    audit.append(
        connection, run_id, actor=person or by_policy(policy), action="propose",
        subject=command.public_id(run), incident=incident, command=number,
        after=CommandState.PROPOSED.value, reason=f"{verb_of(action)}: {reason}",
    )  # fmt: skip
    return command


def revise_command(
    connection: sql.Connection,
    run_id: UUID,
    run: RunId,
    command: CommandRow,
    action: Action,
    *,
    reason: str,
    cause: str | None,
    policy: Policy,
    now: datetime,
    expires_at_step: int | None,
) -> CommandRow:
    """Change what is proposed; whoever saw the old revision has to look again. It expires when the
    first revision does."""
    revision = command.revision + 1
    move_command(
        connection, run_id, run, command, CommandEvent.REVISE, actor=by_policy(policy),
        reason=f"{verb_of(action)}: {reason}", now=now,
        verb=verb_of(action).value, arguments=to_json(action), revision=revision,
        cause=cause, expires_at_step=expires_at_step, policy_version=policy.version,
        policy_scope=policy.scope.value,
    )  # fmt: skip
    connection.execute(
        sql.update(tables.commands).where(*_is(run_id, command)).values(reason=reason)
    )
    _add_revision(
        connection, run_id, command.incident, command.number, revision, now, action, reason,
        policy,
    )  # fmt: skip
    revised = find_command(connection, run_id, command.incident, command.number)
    assert revised is not None
    return revised


def _add_revision(
    connection: sql.Connection,
    run_id: UUID,
    incident: int,
    command: int,
    number: int,
    now: datetime,
    action: Action,
    reason: str,
    policy: Policy,
) -> None:
    connection.execute(
        sql.insert(tables.command_revisions).values(
            run_id=run_id, incident=incident, command=command, number=number, at=now,
            verb=verb_of(action).value, arguments=to_json(action), reason=reason,
            policy_version=policy.version, policy_scope=policy.scope.value,
        )
    )  # fmt: skip


def by_policy(policy: Policy) -> Actor:
    """The actor where a policy acts."""
    return Actor(policy.name, ActorKind.POLICY)


def move_command(
    connection: sql.Connection,
    run_id: UUID,
    run: RunId,
    command: CommandRow,
    event: CommandEvent,
    *,
    actor: str,
    reason: str,
    now: datetime,
    **columns: Any,
) -> CommandState:
    """Let `event` happen to the command; raise the domain's `IllegalMove` if it cannot."""
    state = command_life.next_command_state(command.state, event)
    stamps = dict.fromkeys(_STAMPS.get(event, ()), now)
    if event in _ENDS:
        columns["end_reason"] = reason
    connection.execute(
        sql.update(tables.commands)
        .where(*_is(run_id, command))
        .values(state=state.value, **stamps, **columns)
    )
    audit.append(
        connection, run_id, actor=actor, action=event.value, subject=command.public_id(run),
        incident=command.incident, command=command.number, before=command.state.value,
        after=state.value, reason=reason,
    )  # fmt: skip
    if state is CommandState.APPROVED:
        notify(connection, run_id)
    return state


def correct_result(
    connection: sql.Connection, run_id: UUID, run: RunId, command: CommandRow, actor: str, said: str
) -> None:
    """Say anew what came of a command that was carried out, unless that is known."""
    is_new = tables.commands.c.result.is_distinct_from(said)
    update = sql.update(tables.commands).where(*_is(run_id, command), is_new).values(result=said)
    if not connection.execute(update).rowcount:
        return
    state = command.state.value
    audit.append(
        connection, run_id, actor=actor, action="correct", subject=command.public_id(run),
        before=state, after=state, reason=said,
    )  # fmt: skip


_ENDS = (
    CommandEvent.SUPERSEDE, CommandEvent.EXPIRE, CommandEvent.HEAL, CommandEvent.WITHDRAW,
    CommandEvent.END_RUN, CommandEvent.RESTART, CommandEvent.HALT,
)  # fmt: skip
_STAMPS: dict[CommandEvent, tuple[str, ...]] = {
    CommandEvent.APPROVE: ("decided_at",),
    CommandEvent.REJECT: ("decided_at", "finished_at"),
    CommandEvent.DELIVER: ("delivered_at",),
    **dict.fromkeys(_ENDS, ("finished_at",)),
    CommandEvent.REFUSE: ("finished_at",),
    CommandEvent.APPLY: ("finished_at",),
    CommandEvent.FAIL: ("finished_at",),
}


def stood_at(command: CommandRow, step: int | None) -> dict[str, Any]:
    """The column that keeps where the run stood when nobody had decided in time."""
    return {"decided_step": step} if command.state in WAITING else {}


def _is(run_id: UUID, command: CommandRow) -> tuple[sql.ColumnElement[bool], ...]:
    return (
        _C.run_id == run_id,
        _C.incident == command.incident,
        _C.number == command.number,
    )
