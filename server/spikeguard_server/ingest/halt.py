"""Takes back what was approved and not yet delivered when the kill switch is thrown.

Law: what was thrown once counts though it was lifted since, also for a run that was silent
meanwhile. Nothing that went out before goes out again; whether the job did it, it says itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from spikeguard_core.lifecycle.command_life import CommandEvent, can
from spikeguard_server.entities import CommandRow
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store import audit
from spikeguard_server.store.commands import move_command
from spikeguard_server.store.policies import halted_since


def not_halted(intake: Intake, commands: Sequence[CommandRow]) -> list[CommandRow]:
    """The commands that may go out; what was approved and not delivered is taken back."""
    if not commands:
        return []
    allowed = []
    for command in commands:
        reason = _halted(intake, command)
        if reason is None:
            allowed.append(command)
        elif can(command.state, CommandEvent.HALT):
            move_command(
                intake.connection, command, CommandEvent.HALT,
                actor=audit.SERVER, reason=reason, now=intake.now,
            )  # fmt: skip
    return allowed


def _halted(intake: Intake, command: CommandRow) -> str | None:
    """Why the switch keeps it from going out; None if it does not."""
    if intake.policy.halted:
        return "the kill switch is on"
    if command.decided_at is None or command.decided_at >= intake.now:  # by this very message
        return None
    if not halted_since(intake.connection, intake.run.project, command.decided_at):
        return None
    return "the kill switch was on after it was approved"
