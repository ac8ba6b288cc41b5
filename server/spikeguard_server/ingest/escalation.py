"""Escalates a proposal that nobody answered, and records it.

Law: under the run's lock, by the database's clock, by the policy in force. A proposal that was
answered meanwhile ends its row and tells nobody.
"""

from __future__ import annotations

from datetime import timedelta

from spikeguard_core.lifecycle.command_life import WAITING
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store import audit
from spikeguard_server.store.commands import by_policy, find_command
from spikeguard_server.store.escalations import Escalation, due_escalations, go_on

ESCALATE = "escalate"  # the audit's word for it


def escalate(intake: Intake) -> None:
    """Tell the next level about whatever waits for too long."""
    for due in due_escalations(intake.connection, intake.run_id, intake.now):
        _one(intake, due)


def _one(intake: Intake, due: Escalation) -> None:
    connection, run_id, now = intake.connection, intake.run_id, intake.now
    command = find_command(connection, run_id, due.incident, due.command)
    waits, level = intake.policy.escalation, due.level + 1
    if (
        command is None
        or command.state not in WAITING
        or not command.valid(now, intake.run.last_step)
        or level > len(waits)
    ):
        go_on(connection, run_id, due, due.level, None)
        return
    after = due.began_at + timedelta(seconds=waits[level]) if level < len(waits) else None
    go_on(connection, run_id, due, level, after)
    waited = (now - due.began_at).total_seconds()
    audit.append(
        connection, run_id, actor=by_policy(intake.policy), action=ESCALATE,
        subject=str(command.id),
        incident=command.incident, command=command.number, before=str(due.level), after=str(level),
        reason=f"nobody answered for {waited:.0f} s",
    )  # fmt: skip
