"""Takes a message in: one transaction, top to bottom.

A message has its effect once, whoever takes it and however often it comes. The order is: lock the
run, look at the number, store, detect, answer, commit; only then is it acknowledged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from spikeguard_core.lifecycle.command_life import IN_FLIGHT, WAITING
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import Ack, Gap, Message, ProtocolError
from spikeguard_server.errors import NotSignedIn, SequenceGap, ServiceError
from spikeguard_server.identity.permissions import check_scope
from spikeguard_server.ingest.acknowledgement import acknowledgement_of
from spikeguard_server.ingest.detection import Monitors, choice_of, detection_of
from spikeguard_server.ingest.detector_recovery import detection_in, go_on_without, take_over
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.ingest.proposals import answer_incident, await_answer
from spikeguard_server.ingest.records import return_to_newest_segment, take_records
from spikeguard_server.ingest.results import give_up
from spikeguard_server.ingest.spikes import keep_aftermath, keep_stored
from spikeguard_server.log_format import add_context
from spikeguard_server.settings import Settings
from spikeguard_server.store.commands import commands_about
from spikeguard_server.store.deleted_runs import former_run
from spikeguard_server.store.detectors import Opening, open_message, thinning
from spikeguard_server.store.engine import ask, write
from spikeguard_server.store.reads.runs import HISTORY_AFTER_S
from spikeguard_server.store.runs import LIVE, find_attempt, make_attempt, make_run, update_of_both
from spikeguard_server.store.tables.core import run_key

_TOLD = (ServiceError, ProtocolError, SQLAlchemyError)  # what is no fault of the domain's

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Received:
    """A message with all that it is taken by."""

    message: Message
    now: datetime | None  # None = the database's clock
    settings: Settings
    monitors: Monitors
    bearer: bytes | None  # hash of the secret that it came with; None = judged already
    failure: str | None = None  # why it is stored without asking the domain


def receive(
    engine: sql.Engine,
    message: Message,
    now: datetime | None = None,
    *,
    settings: Settings = Settings(),  # noqa: B008
    monitors: Monitors | None = None,
    bearer: bytes | None = None,
) -> Ack:
    """Store `message`, detect on it, and answer; durable when this returns.

    `now` is the database's clock unless given; `bearer` is the hash of the token's secret, judged
    in the same transaction unless it is None. Raises `SequenceGap` for a message that leaves a
    hole, `Unready` for a detector state that this version cannot read, `NotSignedIn`, `Forbidden`.
    """
    add_context(run=str(message.run_id))
    received = Received(message, now, settings, monitors or Monitors(), bearer)
    try:
        return _receive(engine, received)
    except _TOLD:
        raise
    except Exception as error:
        _log.exception("detection failed on message %d of %s", message.sequence, message.run_id)
        told = f"{type(error).__name__}: {error}"[:500]
        return _receive(engine, replace(received, failure=told))


def _receive(engine: sql.Engine, received: Received) -> Ack:
    with engine.begin() as connection:
        intake = _open(connection, received)
        if intake.reach > intake.attempt.last_sequence:
            _store(intake, received.message)
        ack = acknowledgement_of(intake)
        if intake.detection.snapshots:
            write(connection, thinning(intake.run_id))
        intake.detection.save(connection)
        both = update_of_both(intake.run, intake.attempt)
        # In one wait with what was written before. SQLAlchemy's own COMMIT finds it done.
        ask(connection, both, ("COMMIT", {}))
    received.monitors.keep(intake.run_id, intake.detection)
    return ack


def _open(connection: sql.Connection, received: Received) -> Intake:
    """Lock the run, and make it and the attempt where they are new."""
    message, monitors = received.message, received.monitors
    key = run_key(message.run_id)
    kept = monitors.take(key)
    look = partial(
        open_message, connection, key, message.project, message.attempt,
        kept.version if kept else -1, received.bearer,
    )  # fmt: skip
    former = None
    try:
        reach = _admit(opening := look(), received)
        if opening.run is None:
            former = former_run(connection, key)
            begun = (former.attempts, former.incidents) if former else (0, 0)
            make_run(connection, message.run_id, received.now or opening.now, *begun)
            reach = _admit(opening := look(), received)  # another replica may have been faster
    except BaseException:
        if kept is not None:
            monitors.keep(key, kept)  # or whoever is refused had it read anew each time
        raise
    now, run, attempt = received.now or opening.now, opening.run, opening.attempt
    assert run is not None
    if received.failure is None:
        detection = detection_of(connection, key, opening.state, kept)
        detection.use(choice_of(opening.detection))
    else:
        detection = detection_in(key, opening.state)
    if former is not None:  # so that no replica takes the deleted run's detector for this one's
        detection.version = max(detection.version, former.detector_version)
    before = run.current_attempt
    if attempt is None:
        began = now - timedelta(seconds=message.age_s)
        attempt = make_attempt(connection, run, message.attempt, now, began)
    intake = Intake(
        connection, received.settings, now, run, attempt, detection, reach,
        unfinished=None if opening.commands else [], others=opening.others,
        failure=received.failure,
    )  # fmt: skip
    if opening.newest_step is not None and run.current_segment is not None:
        intake.newest[run.current_segment] = opening.newest_step
    if detection.relearned:
        take_over(intake)
    if opening.attempt is None:
        _begin_attempt(intake, before)
    return intake


def _admit(opening: Opening, received: Received) -> int:
    """Refuse a token that does not work any more, or not for this run, and a message that leaves a
    hole; the highest sequence that is stored once the message is."""
    message, bearer = received.message, opening.bearer
    if received.bearer is not None:
        if bearer is None:
            raise NotSignedIn(
                "This token is unknown, expired or revoked", "Ask an admin for a token"
            )
        check_scope(*bearer, message.run_id)
    last = 0 if opening.attempt is None else opening.attempt.last_sequence
    declared = [(gap.first, gap.last) for gap in message.records if isinstance(gap, Gap)]
    reach = last
    for first, end in sorted([*declared, (message.sequence, message.sequence)]):
        if first <= reach + 1:
            reach = max(reach, end)
    if message.sequence > reach:
        raise SequenceGap(last + 1, message.sequence)
    return reach


def _begin_attempt(intake: Intake, before: int | None) -> None:
    """This message is the attempt's first; the run was followed by attempt `before`. It is followed
    by this one from now on, unless this tells of an older one."""
    run, attempt = intake.run, intake.attempt
    current = find_attempt(intake.connection, run.run_id, before)
    intake.record("attempt.started", "its first message came", after=attempt.name)
    clock_set_back = current is not None and current.started_at > intake.now
    if current is None or attempt.started_at >= current.started_at or clock_set_back:
        intake.follow_attempt("it started later")
        run.current_segment = None
        intake.sends()
        if before is not None:
            give_up(intake, f"{attempt.name} took over", attempt=before)


def _take_back(intake: Intake) -> None:
    """Follow this attempt again where the one that took over is gone and this one lives on."""
    run, attempt = intake.run, intake.attempt
    current = find_attempt(intake.connection, run.run_id, run.current_attempt)
    assert current is not None
    gone = current.ended_at is not None or current.lost
    if not gone or attempt.ended_at is not None or attempt.alive_at <= current.alive_at:
        return
    give_up(intake, f"{attempt.name} goes on", attempt=current.number)
    intake.follow_attempt(f"attempt {current.number} is gone, this one goes on")
    return_to_newest_segment(intake)


def _store(intake: Intake, message: Message) -> None:
    attempt, run = intake.attempt, intake.run
    alive_at = intake.now - timedelta(seconds=message.age_s)
    attempt.last_sequence, attempt.last_message_at = intake.reach, intake.now
    attempt.alive_at = max(attempt.alive_at, alive_at)
    if alive_at > intake.now - intake.silent_after:
        if attempt.lost:
            intake.record("attempt.found", "it sends again", after=attempt.name)
            attempt.lost = False
        if not intake.current:
            _take_back(intake)
    if run.state != LIVE and intake.current and attempt.ended_at is None:
        intake.sends()
    run.last_message_at = intake.now
    take_records(intake, message)
    if intake.failure is not None:
        go_on_without(intake, intake.failure)
        return
    if run.followed_to is not None:
        keep_aftermath(intake)
    if intake.incident is not None:
        _answer(intake, intake.incident, message)


def _answer(intake: Intake, incident: Incident, message: Message) -> None:
    """Keep what surrounds an open incident, and ask the policy."""
    keep_stored(intake, incident)
    known = commands_about(intake.connection, intake.run_id, intake.now, incident.number)
    if (
        intake.current
        and intake.attempt.ended_at is None
        and message.age_s <= HISTORY_AFTER_S
        and answer_incident(intake, incident, known)
    ):
        known = commands_about(intake.connection, intake.run_id, intake.now, incident.number)
    await_answer(intake, incident, known)
    intake.unfinished = [command for command in known if command.state in WAITING | IN_FLIGHT]
