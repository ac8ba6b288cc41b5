"""The acknowledgement of a message: what is stored, which orders wait, which targets to keep.

Orders go to the one live attempt that the run is followed by, while they are valid by the
database's clock, again and again until a result is stored. What the kill switch was thrown over,
though it was lifted since, does not go out: what was approved and not delivered is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

from spikeguard_core.lifecycle.command_life import IN_FLIGHT, CommandEvent, can
from spikeguard_protocol import Ack, CommandState, Order
from spikeguard_server.entities import CommandRow
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store.commands import move_command, unfinished_commands
from spikeguard_server.store.policies import halted_since
from spikeguard_server.store.runs import attempts_of, live_attempts
from spikeguard_server.store.situations import kept_targets


def acknowledgement_of(intake: Intake) -> Ack:
    """The answer to the message that `intake` took in."""
    connection, run, mine, live = intake.connection, intake.run, intake.attempt, 1
    if intake.others and run.attempts > 1:
        rows = attempts_of(connection, run.run_id)  # of which mine is written at the end
        known = [mine if row.number == mine.number else row for row in rows]
        # At least one, so that the last word of a run counts.
        live = max(1, len(live_attempts(known, run, intake.now, intake.silent_after)))
    attentive = intake.current and intake.detection.monitor.attentive
    commands, orders, incident = intake.unfinished, list[Order](), intake.incident
    if commands is None:
        commands = unfinished_commands(connection, run.run_id)
    if commands:
        commands = not_halted(intake, commands)
        if live == 1 and intake.current and mine.ended_at is None:
            orders = _orders(intake, commands)
    near = attentive or commands or incident is not None
    kept = frozenset[str]()  # targets that a decision may still want: approvals come late
    if near:
        kept = kept_targets(connection, run, intake.targets, incident, commands)
    return Ack(
        sequence=mine.last_sequence,
        orders=tuple(orders),
        attentive=attentive,
        protected=tuple(sorted(kept)),
        live_attempts=live,
    )


def _orders(intake: Intake, commands: list[CommandRow]) -> list[Order]:
    orders = []
    for command in commands:
        if command.state not in IN_FLIGHT or command.attempt != intake.attempt.number:
            continue
        if not command.valid(intake.now, intake.run.last_step):
            continue
        if command.state is CommandState.APPROVED:
            reason = f"to attempt {command.attempt}"
            move_command(intake.connection, command, CommandEvent.DELIVER, reason, intake.now)
        orders.append(
            Order(
                command=str(command.id), attempt=intake.attempt.id, action=command.action,
                expires_in_s=(command.expires_at - intake.now).total_seconds(),
                expires_at_step=command.expires_at_step,
            )
        )  # fmt: skip
    return orders


def not_halted(intake: Intake, commands: Sequence[CommandRow]) -> list[CommandRow]:
    """The commands that may go out; what was approved and not delivered is taken back."""
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
