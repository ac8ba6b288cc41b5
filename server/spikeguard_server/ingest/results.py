"""Applies results of orders, and ends those that may not go out or nobody can report on any more.

The first result that is stored stands, but for a rollback of which the agent finds out later that
other data came after it. A result is taken from any attempt of the run and at any age: a fence
stops execution, never the truth about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.lifecycle.command_life import EVENT_OF_RESULT, CommandEvent, can
from spikeguard_core.lifecycle.command_outcome import after_end
from spikeguard_core.lifecycle.incident_life import acted
from spikeguard_protocol import (
    OWN_RULE,
    RUN_ITSELF,
    CommandId,
    CommandResult,
    CommandState,
    Outcome,
    ResultState,
    ScaleLr,
)
from spikeguard_server.entities import CommandRow
from spikeguard_server.errors import NotFound
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store.commands import (
    commands_of,
    correct_result,
    move_command,
    read_command,
    record_own_rule,
    unfinished_commands,
)
from spikeguard_server.store.incidents import date_report, read_incident
from spikeguard_server.store.notes import await_effect
from spikeguard_server.store.policies import halted_since
from spikeguard_server.store.runs import attempt_settings

MAX_NUMBER = 2**31 - 1
OTHER_DATA = "other data, "  # how the agent begins a result that it corrects


def take_result(intake: Intake, result: CommandResult) -> None:
    """Store what the agent says of a command, unless that is known already."""
    command = _command(intake, result)
    event = EVENT_OF_RESULT[result.state]
    actor = Actor(intake.attempt.name, ActorKind.AGENT)
    if command is None:
        return
    if not can(command.state, event):
        done = command.state in (CommandState.APPLIED, CommandState.JUDGED)
        if done and event is CommandEvent.APPLY and result.reason.startswith(OTHER_DATA):
            correct_result(intake.connection, command, actor, result.reason)
            if command.incident not in (RUN_ITSELF, intake.run.open_incident):
                date_report(intake.connection, intake.run_id, command.incident)
        return
    move_command(
        intake.connection, command, event, result.reason, intake.now, actor=actor,
        applied_step=result.step, result=result.reason,
    )  # fmt: skip
    if result.state is ResultState.APPLIED and command.verb in CURES:
        await_effect(
            intake.connection, intake.run, command, intake.detection.place, result.step, intake.now
        )
    if command.incident == RUN_ITSELF:
        if command.verb not in CURES:  # it changes nothing that a loss could tell of
            _judge(intake, command, after_end(command.verb, None, outcome=Outcome.RUN_ENDED))
        return
    if result.state is ResultState.APPLIED:
        _applied(intake, command, result.step)
    if intake.run.open_incident == command.incident:
        return
    closed = read_incident(intake.connection, command.id.incident).incident
    if closed.outcome is None:
        return
    # Nothing will come to judge it by, and the post-mortem was written without it.
    judgement = f"the incident had ended as {closed.outcome} before its result came"
    if command.verb not in CURES:
        judgement = after_end(command.verb, None, outcome=closed.outcome)
    _judge(intake, command, judgement)
    date_report(intake.connection, intake.run_id, command.incident)


def _judge(intake: Intake, command: CommandRow, judgement: str) -> None:
    """Judge a command that was applied by now."""
    done = read_command(intake.connection, command.id)
    if done.state is CommandState.APPLIED:
        move_command(intake.connection, done, CommandEvent.JUDGE, judgement, intake.now)


def _command(intake: Intake, result: CommandResult) -> CommandRow | None:
    """The command that is meant, made where the job ordered it by its emergency rule; None where it
    is no command of this run."""
    named = CommandId.parse(result.command)
    incident, number = named.incident.number, named.number
    if named.incident.run != intake.run.id or max(incident, number) > MAX_NUMBER:
        return None
    with suppress(NotFound):
        return read_command(intake.connection, named)
    if incident != RUN_ITSELF or number < OWN_RULE:
        return None
    told = attempt_settings(intake.connection, intake.run_id, intake.attempt.number)
    try:
        action = ScaleLr(float(told["emergency_factor"]), int(told["emergency_steps"]))
    except (KeyError, ValueError):
        return None
    return record_own_rule(
        intake.connection, intake.run, number, action, intake.attempt.number, intake.policy,
        intake.now,
    )  # fmt: skip


def _applied(intake: Intake, command: CommandRow, step: int) -> None:
    verb = command.verb
    if verb in CURES:  # what was proposed while nobody knew of it would do it a second time
        for other in commands_of(intake.connection, intake.run_id, command.incident):
            if other.number != command.number and can(other.state, CommandEvent.SUPERSEDE):
                reason = f"{command.id} had been applied"
                move_command(intake.connection, other, CommandEvent.SUPERSEDE, reason, intake.now)
    incident = intake.incident
    if incident is None or incident.number != command.incident or intake.failure is not None:
        return
    intake.save(acted(incident, verb))
    intake.detection.moved().intervened(step, verb)


def give_up(
    intake: Intake, reason: str, *, attempt: int, event: CommandEvent = CommandEvent.RESTART
) -> None:
    """Orders to `attempt` that it will not carry out any more, or not report on.

    `event` is what that is to a command that did not reach it.
    """
    for command in unfinished_commands(intake.connection, intake.run_id):
        if command.attempt == attempt:
            lost = CommandEvent.LOSE if command.state is CommandState.DELIVERED else event
            move_command(intake.connection, command, lost, reason, intake.now)


def not_halted(intake: Intake, commands: Sequence[CommandRow]) -> list[CommandRow]:
    """The commands that may go out. What was approved and not delivered is taken back while the
    kill switch is on, and where it was on since, though it was lifted."""
    connection, now, allowed = intake.connection, intake.now, []
    for command in commands:
        decided = command.decided_at or now
        if intake.policy.halted:
            reason = "the kill switch is on"
        # What was decided now was so by this very message.
        elif decided < now and halted_since(connection, intake.run.project, decided):
            reason = "the kill switch was on after it was approved"
        else:
            allowed.append(command)
            continue
        if can(command.state, CommandEvent.HALT):
            move_command(connection, command, CommandEvent.HALT, reason, now)
    return allowed
