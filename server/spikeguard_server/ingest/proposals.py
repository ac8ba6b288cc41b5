"""From an open incident to a command that waits for a decision, or is approved by the policy.

Law: the policy decides, this writes its decision down. At most one command of an incident waits;
what changes is a revision, what is replaced says so.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sql

from spikeguard_protocol import CommandState, verb_of
from spikeguard_server.domain.approval import auto_approval
from spikeguard_server.domain.command_life import CommandEvent
from spikeguard_server.domain.incident import Incident
from spikeguard_server.domain.policy import Policy
from spikeguard_server.domain.proposal import Proposal, differs, propose
from spikeguard_server.domain.situation import Situation
from spikeguard_server.repository import audit
from spikeguard_server.repository.commands import (
    CommandRow,
    commands_of,
    create_command,
    move,
    revise_command,
)
from spikeguard_server.repository.incidents import Attempts
from spikeguard_server.repository.policies import policy_of
from spikeguard_server.repository.runs import AttemptRow, RunRow
from spikeguard_server.repository.situations import situation_of

_VOID = (CommandState.SUPERSEDED, CommandState.UNKNOWN, CommandState.EXPIRED)


def answer_incident(
    connection: sql.Connection,
    run: RunRow,
    attempt: AttemptRow,
    incident: Incident,
    attempts: Attempts,
    now: datetime,
) -> None:
    """Ask the policy about `incident` and write down what it wants."""
    policy = policy_of(connection, run.project)
    situation = situation_of(connection, run, attempt, incident, attempts, policy, now)
    proposal = propose(situation, policy)
    commands = commands_of(connection, run.run_id, incident.number)
    waiting = next((c for c in commands if c.state is CommandState.PROPOSED), None)
    if waiting is not None and not waiting.valid(now, run.last_step):
        _withdraw(connection, run, waiting, CommandEvent.EXPIRE, "nobody decided in time", now)
        commands, waiting = commands_of(connection, run.run_id, incident.number), None
    if waiting is None:
        command = _first(connection, run, attempt, incident, commands, proposal, policy, now)
    else:
        command = _again(connection, run, attempt, waiting, proposal, policy, now)
    if command is not None:
        _approve_by_policy(connection, run, command, situation, policy, now)


def _first(
    connection: sql.Connection,
    run: RunRow,
    attempt: AttemptRow,
    incident: Incident,
    commands: list[CommandRow],
    proposal: Proposal,
    policy: Policy,
    now: datetime,
) -> CommandRow | None:
    if proposal.action is None:
        return None
    last = commands[-1] if commands else None
    replaced = last.number if last and last.state in _VOID else None
    return create_command(
        connection, run.run_id, run.id, incident.number, proposal.action,
        attempt=attempt.number, reason=proposal.reason, policy_version=policy.version, now=now,
        expires_at=now + timedelta(seconds=proposal.expires_in_s),
        expires_at_step=proposal.expires_at_step, replaces=replaced,
    )  # fmt: skip


def _again(
    connection: sql.Connection,
    run: RunRow,
    attempt: AttemptRow,
    waiting: CommandRow,
    proposal: Proposal,
    policy: Policy,
    now: datetime,
) -> CommandRow | None:
    """What the policy wants now, beside what it proposed before."""
    action = proposal.action
    if action is None:
        _withdraw(connection, run, waiting, CommandEvent.EXPIRE, proposal.reason, now)
        return None
    if waiting.verb == verb_of(action).value:
        return revise(connection, run, waiting, proposal, policy, now)
    _withdraw(connection, run, waiting, CommandEvent.SUPERSEDE, proposal.reason, now)
    return create_command(
        connection, run.run_id, run.id, waiting.incident, action,
        attempt=attempt.number, reason=proposal.reason, policy_version=policy.version, now=now,
        expires_at=now + timedelta(seconds=proposal.expires_in_s),
        expires_at_step=proposal.expires_at_step, replaces=waiting.number,
    )  # fmt: skip


def revise(
    connection: sql.Connection,
    run: RunRow,
    waiting: CommandRow,
    proposal: Proposal,
    policy: Policy,
    now: datetime,
) -> CommandRow | None:
    """A new revision where a person would have to look again; None where they would not."""
    assert proposal.action is not None
    if not differs(waiting.action, proposal.action):
        return None
    return revise_command(
        connection, run.run_id, run.id, waiting, proposal.action,
        reason=proposal.reason, policy_version=policy.version, now=now,
        expires_at=now + timedelta(seconds=proposal.expires_in_s),
        expires_at_step=proposal.expires_at_step,
    )  # fmt: skip


def _withdraw(
    connection: sql.Connection,
    run: RunRow,
    command: CommandRow,
    event: CommandEvent,
    reason: str,
    now: datetime,
) -> None:
    move(
        connection, run.run_id, run.id, command, event,
        actor=audit.SERVER, reason=reason, now=now,
    )  # fmt: skip


def _approve_by_policy(
    connection: sql.Connection,
    run: RunRow,
    command: CommandRow,
    situation: Situation,
    policy: Policy,
    now: datetime,
) -> None:
    answer = auto_approval(verb_of(command.action), policy, situation.past)
    if answer.allowed:
        actor = f"policy {policy.version}"
        move(
            connection, run.run_id, run.id, command, CommandEvent.APPROVE,
            actor=actor, reason=answer.reason, now=now, decided_by=actor,
            decision_reason=answer.reason, decided_step=run.last_step, automatic=True,
        )  # fmt: skip
