"""Timeouts: commands expire, what nobody answers is escalated, attempts fall silent, runs end.

One run, under its lock, by the database's clock. Everything here looks again before it acts, so
that any number of replicas may try.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.lifecycle.command_life import WHY_LATE, CommandEvent, can
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_server.entities import CommandRow
from spikeguard_server.ingest.detection import Detection, load_detection
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.ingest.results import give_up, not_halted
from spikeguard_server.ingest.spikes import end_aftermath, take_over, write_events
from spikeguard_server.log_format import add_context
from spikeguard_server.settings import Settings
from spikeguard_server.store import audit
from spikeguard_server.store.commands import (
    by_policy,
    due_escalations,
    end_command,
    set_escalation,
    unfinished_commands,
)
from spikeguard_server.store.engine import database_now, write
from spikeguard_server.store.runs import ENDED, LIVE, SILENT, attempts_of, lock_run, update_of_both
from spikeguard_server.store.situations import forget_memory


def let_time_pass(
    connection: sql.Connection, run_id: UUID, settings: Settings, now: datetime | None = None
) -> None:
    """Write down what time has done to the run."""
    run = lock_run(connection, run_id)
    now = now or database_now(connection)
    if run is None:
        return
    add_context(run=str(run.id))
    nothing_judged = Detection(run_id, Monitor())  # and not saved
    for attempt in attempts_of(connection, run_id):
        intake = Intake(connection, settings, now, run, attempt, nothing_judged)
        _lose(intake)
        if intake.current:
            unfinished = unfinished_commands(connection, run_id)
            allowed = {command.key for command in not_halted(intake, unfinished)}
            for command in unfinished:
                if command.key in allowed or not can(command.state, CommandEvent.HALT):
                    _expire(intake, command)
            escalate(intake)
            _fall_silent(intake)
            write(connection, update_of_both(run, attempt))


def write_down(connection: sql.Connection, run_id: UUID) -> None:
    """Let the detector's bytes alone say where it stands: the samples behind them go."""
    if lock_run(connection, run_id) is None:
        return
    detection = load_detection(connection, run_id)
    if detection.relearned:
        return  # an older release wrote it, and the run has said nothing since
    detection.moved()
    detection.save(connection)


def _expire(intake: Intake, command: CommandRow) -> None:
    """Nobody decided, took or reported it in time."""
    if command.valid(intake.now, intake.run.last_step):
        return
    grace = timedelta(seconds=intake.settings.lost_after_s)
    if command.delivered_at is not None and intake.now < command.delivered_at + grace:
        return  # it may be doing it just now, and will say so
    end_command(
        intake.connection, command, CommandEvent.EXPIRE, WHY_LATE[command.state], intake.now,
        intake.run.last_step,
    )  # fmt: skip


def _lose(intake: Intake) -> None:
    """Long silence: what the attempt held in memory and in hand is gone."""
    attempt = intake.attempt
    silent = _silent_for(intake, attempt.last_message_at)
    if attempt.lost or attempt.ended_at is not None or silent < intake.settings.lost_after_s:
        return
    attempt.lost = True
    intake.record("attempt.lost", f"no message for {silent:.0f} s", before=attempt.name)
    write(intake.connection, update_of_both(intake.run, attempt))
    forget_memory(intake.connection, intake.run_id, attempt.number, intake.now)
    give_up(intake, f"{attempt.name} fell silent", attempt=attempt.number)


def _fall_silent(intake: Intake) -> None:
    """After long silence that no restart has broken, whatever was open closes as it stands."""
    run = intake.run
    silent = _silent_for(intake, run.last_message_at)
    if run.state == LIVE and silent >= intake.settings.silent_after_s:
        intake.set_state(SILENT, f"no message for {silent:.0f} s")
    if silent < intake.settings.ended_after_s:
        return
    intake.set_state(ENDED, f"no message for {silent:.0f} s")
    if run.open_incident is not None:  # else it is not read: a network silences all runs at once
        intake.detection = load_detection(intake.connection, run.run_id)
        if intake.detection.relearned:
            take_over(intake)
        write_events(intake, intake.detection.moved().end())
        intake.detection.save(intake.connection)
    end_aftermath(intake)


def _silent_for(intake: Intake, since: datetime) -> float:
    """Seconds."""
    return (intake.now - since).total_seconds()


def escalate(intake: Intake) -> None:
    """Tell the next level about whatever waits for too long."""
    connection, now, waits = intake.connection, intake.now, intake.policy.escalation
    for due in due_escalations(connection, intake.run_id, now):
        level = due.escalation + 1
        if level > len(waits):  # of the policy that is in force by now
            set_escalation(connection, due, due.escalation, None)
            continue
        after = due.proposed_at + timedelta(seconds=waits[level]) if level < len(waits) else None
        set_escalation(connection, due, level, after)
        waited = (now - due.proposed_at).total_seconds()
        audit.append(
            connection, intake.run_id, actor=by_policy(intake.policy), action="escalate",
            subject=str(due.id), incident=due.incident, command=due.number,
            before=str(due.escalation), after=str(level),
            reason=f"nobody answered for {waited:.0f} s",
        )  # fmt: skip
