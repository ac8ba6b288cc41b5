"""The one transaction of a message.

Law: a message has its effect once, whoever takes it and however often it comes. The order is: lock
the run, look at the number, store, detect, answer, commit; only then is it acknowledged.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sql

from spikeguard_protocol import Ack, AttemptStarted, Message
from spikeguard_server.errors import SequenceGap
from spikeguard_server.ingest.acknowledgement import acknowledge
from spikeguard_server.ingest.aftermath import keep_aftermath
from spikeguard_server.ingest.detection import Monitors, load_detection
from spikeguard_server.ingest.intake import Intake, is_history
from spikeguard_server.ingest.proposals import answer_incident
from spikeguard_server.ingest.records import return_to_newest_segment, take_records
from spikeguard_server.ingest.results import give_up
from spikeguard_server.ingest.sequence import reached
from spikeguard_server.ingest.spikes import copy_stored
from spikeguard_server.repository.engine import database_now
from spikeguard_server.repository.runs import (
    LIVE,
    AttemptRow,
    RunRow,
    attempts_of,
    find_attempt,
    lock_run,
    make_attempt,
    make_run,
    save_attempt,
    save_run,
)
from spikeguard_server.settings import Settings
from spikeguard_server.tables import run_key

# What stands in for an `AttemptStarted` that never came.
_UNKNOWN_START = AttemptStarted(None, world_size=1, capabilities=(), agent_version="unknown")


def receive(
    engine: sql.Engine,
    message: Message,
    now: datetime | None = None,
    *,
    settings: Settings = Settings(),  # noqa: B008
    monitors: Monitors | None = None,
) -> Ack:
    """Store `message`, detect on it, and answer; durable when this returns.

    `now` is the database's clock unless given. Raises `SequenceGap` for a message that leaves a
    hole, `Unready` for a detector state that this version cannot read.
    """
    with engine.begin() as connection:
        intake = _open(connection, message, now, settings, monitors)
        reach = reached(intake.attempt.last_sequence, message)
        if reach is None:
            raise SequenceGap(intake.attempt.last_sequence + 1, message.sequence)
        if reach > intake.attempt.last_sequence:
            _store(intake, message, reach)
        ack = acknowledge(intake)
        intake.detection.save(connection)
        save_run(connection, intake.run)
        save_attempt(connection, intake.run_id, intake.attempt)
    if monitors is not None:
        monitors.keep(intake.run_id, intake.detection.version, intake.detection.monitor)
    return ack


def _open(
    connection: sql.Connection,
    message: Message,
    now: datetime | None,
    settings: Settings,
    monitors: Monitors | None,
) -> Intake:
    """Lock the run, and make it and the attempt where they are new."""
    key = run_key(message.run_id)
    run = lock_run(connection, key)
    now = now or database_now(connection)
    run = run or make_run(connection, message.run_id, now)
    attempt = find_attempt(connection, key, message.attempt)
    detection = load_detection(connection, key, monitors)
    if attempt is not None:
        return Intake(connection, settings, now, run, attempt, detection)
    if reached(0, message) is None:
        raise SequenceGap(1, message.sequence)
    attempt, before = _register(connection, run, message, now), run.current_attempt
    intake = Intake(connection, settings, now, run, attempt, detection)
    if _takes_over(connection, run, attempt):
        run.current_attempt, run.current_segment, run.state = attempt.number, None, LIVE
        if before is not None:
            give_up(intake, f"attempt {attempt.number} took over", attempt=before)
    return intake


def _register(
    connection: sql.Connection, run: RunRow, message: Message, now: datetime
) -> AttemptRow:
    started = next((r for r in message.records if isinstance(r, AttemptStarted)), _UNKNOWN_START)
    return make_attempt(
        connection, run, message.attempt, started,
        now=now, started_at=now - timedelta(seconds=message.age_s),
    )  # fmt: skip


def _takes_over(connection: sql.Connection, run: RunRow, attempt: AttemptRow) -> bool:
    """Whether the run is followed by this attempt from now on: a backlog is not."""
    others = attempts_of(connection, run.run_id)
    current = next((a for a in others if a.number == run.current_attempt), None)
    return current is None or attempt.started_at >= current.started_at


def _take_back(intake: Intake) -> None:
    """Follow this attempt again where the one that took over is gone and this one lives on."""
    run, attempt = intake.run, intake.attempt
    others = attempts_of(intake.connection, run.run_id)
    current = next(a for a in others if a.number == run.current_attempt)
    gone = current.ended_at is not None or current.lost
    if not gone or attempt.ended_at is not None or attempt.alive_at <= current.alive_at:
        return
    give_up(intake, f"attempt {attempt.number} goes on", attempt=current.number)
    run.current_attempt = attempt.number
    return_to_newest_segment(intake)


def _store(intake: Intake, message: Message, reach: int) -> None:
    attempt, run = intake.attempt, intake.run
    alive_at = intake.now - timedelta(seconds=message.age_s)
    attempt.last_sequence, attempt.last_message_at = reach, intake.now
    attempt.alive_at = max(attempt.alive_at, alive_at)
    if alive_at > intake.now - intake.silent_after:
        attempt.lost = False  # it fell silent and is back
        if not intake.current:
            _take_back(intake)
    if intake.current and attempt.ended_at is None:
        run.state = LIVE
    run.last_message_at = intake.now
    take_records(intake, message)
    _answer(intake, message)


def _answer(intake: Intake, message: Message) -> None:
    """Keep what surrounds an incident and, while it is open, ask the policy."""
    keep_aftermath(intake)
    incident = intake.incident
    if incident is None:
        return
    copy_stored(intake, incident)
    if (
        intake.current
        and intake.attempt.ended_at is None
        and not is_history(message, intake.settings)
    ):
        answer_incident(intake, incident)
