"""From an open incident to a command that waits for a decision, or is approved by the policy.

The policy decides, this writes its decision down. At most one command of an incident waits; what
changes is a revision, what is replaced says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.lifecycle.command_life import (
    EXECUTED,
    IN_FLIGHT,
    UNDECIDED,
    WAITING,
    WHY_LATE,
    CommandEvent,
    withdrawal,
)
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.orders import auto_approval
from spikeguard_core.policy.proposal import differs, propose
from spikeguard_core.policy.rules import Proposal
from spikeguard_protocol import RUN_ITSELF, Action, Verb, Watch, verb_of
from spikeguard_server.entities import CommandRow
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store.commands import (
    by_policy,
    create_command,
    end_command,
    move_command,
    revise_command,
)
from spikeguard_server.store.situations import situation_of


def answer_incident(intake: Intake, incident: Incident, known: list[CommandRow]) -> bool:
    """Ask the policy about `incident` and write down what it wants; whether any command changed.
    `known`: `commands_about` it."""
    connection, run, policy, now = intake.connection, intake.run, intake.policy, intake.now
    commands = [command for command in known if command.incident == incident.number]
    waiting = next((c for c in commands if c.state in WAITING), None)
    situation = situation_of(connection, run, intake.attempt, incident, intake.targets, known, now)
    proposal = propose(situation, policy)
    changed = waiting is not None and not waiting.valid(now, run.last_step)
    if waiting is not None and changed:
        end_command(
            connection, waiting, CommandEvent.EXPIRE, WHY_LATE[waiting.state], now, run.last_step
        )
        waiting = None
    command = None
    if waiting is not None:
        command = _again(intake, waiting, incident, proposal)
    elif proposal.action is not None and not _is_moot(intake, incident, known, proposal.action):
        command = _create(intake, incident.number, proposal.action, proposal)
    reason = None
    if command is not None and not proposal.by_person:
        reason = auto_approval(command.verb, policy, situation.past)
    if command is not None and reason is not None:
        move_command(
            connection, command, CommandEvent.APPROVE, reason, now, actor=by_policy(policy),
            decided_by=policy.name, decision_reason=reason, decided_step=run.last_step,
            automatic=True,
        )  # fmt: skip
    return changed or reason is not None or command is not waiting


def await_answer(intake: Intake, incident: Incident, known: list[CommandRow]) -> None:
    """Tell the monitor whether a decision about `incident` is open, by the commands about it."""
    asked = [
        command
        for command in known
        if command.incident == incident.number and command.verb != Verb.WATCH
    ]
    intake.detection.await_decision(bool(asked) and asked[-1].state in UNDECIDED)


def _is_moot(
    intake: Intake, incident: Incident, known: Iterable[CommandRow], action: Action
) -> bool:
    """Whether the attempt carried out a stop, and has yet to say that it ended; or a person's order
    of the run itself is on its way, which changes the training too."""
    changes = verb_of(action) in CURES
    for one in known:
        stopped = one.verb is Verb.STOP and one.state in EXECUTED
        if stopped and one.incident == incident.number and one.attempt == intake.attempt.number:
            return True
        ordered = one.verb in CURES and one.state in IN_FLIGHT
        if ordered and one.incident == RUN_ITSELF and changes:
            return True
    return False


def _again(
    intake: Intake, waiting: CommandRow, incident: Incident, proposal: Proposal
) -> CommandRow | None:
    """The command that waits from now on, and may get its approval as time passes; if any."""
    connection, run, now, action = intake.connection, intake.run, intake.now, proposal.action
    if action is not None and waiting.verb is verb_of(action):
        if proposal.cause == waiting.cause and not differs(waiting.action, action):
            return waiting
        return revise_command(connection, waiting, proposal, intake.policy, now)
    withdrawn = action is None or isinstance(action, Watch)
    event = withdrawal(incident.kind) if withdrawn else CommandEvent.SUPERSEDE
    end_command(connection, waiting, event, proposal.reason, now, run.last_step)
    return None if action is None else _create(intake, waiting.incident, action, proposal)


def _create(intake: Intake, incident: int, action: Action, proposal: Proposal) -> CommandRow:
    waits = () if isinstance(action, Watch) else intake.policy.escalation
    return create_command(
        intake.connection, intake.run, incident, action,
        attempt=intake.attempt.number, reason=proposal.reason,
        policy=intake.policy, now=intake.now,
        expires_at=intake.now + timedelta(seconds=intake.policy.expires_in_s),
        expires_at_step=proposal.expires_at_step, cause=proposal.cause,
        escalates_at=intake.now + timedelta(seconds=waits[0]) if waits else None,
    )  # fmt: skip
