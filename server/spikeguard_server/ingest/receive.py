"""Takes a message in: one transaction, top to bottom.

Law: a message has its effect once, whoever takes it and however often it comes. The order is: lock
the run, look at the number, store, detect, answer, commit; only then is it acknowledged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from spikeguard_core.diagnosis.kind_rates import PUBLISHED
from spikeguard_protocol import Ack, AttemptEnded, AttemptStarted, Gap, Message, ProtocolError
from spikeguard_server.errors import NotSignedIn, SequenceGap, ServiceError
from spikeguard_server.identity.permissions import check_scope
from spikeguard_server.ingest import run_lifecycle
from spikeguard_server.ingest.acknowledgement import acknowledgement_of
from spikeguard_server.ingest.detection import Monitors, choice_of
from spikeguard_server.ingest.detector_rebuild import RebuildBudgets
from spikeguard_server.ingest.detector_recovery import detection_after, go_on_without, take_over
from spikeguard_server.ingest.message_context import Intake, Tail, TooCostly, is_history
from spikeguard_server.ingest.post_incident import keep_aftermath
from spikeguard_server.ingest.proposals import answer_incident, await_answer
from spikeguard_server.ingest.records import ON_PURPOSE, return_to_newest_segment, take_records
from spikeguard_server.ingest.results import give_up
from spikeguard_server.ingest.spikes import copy_stored
from spikeguard_server.log_format import add_context
from spikeguard_server.settings import Settings
from spikeguard_server.store.deleted_runs import Former, former_run
from spikeguard_server.store.detectors import thin_snapshots
from spikeguard_server.store.message_opening import Bearer, Opening, open_message
from spikeguard_server.store.runs import (
    AttemptRow,
    RunRow,
    find_attempt,
    make_attempt,
    make_run,
    save_attempt,
    save_run,
)
from spikeguard_server.store.tables.core import run_key

# What stands in for an `AttemptStarted` that never came.
UNKNOWN_START = AttemptStarted(None, world_size=1, capabilities=(), agent_version="unknown")
_TOLD = (ServiceError, ProtocolError, SQLAlchemyError)  # what is no fault of the domain's

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Received:
    """A message with all that it is taken by."""

    message: Message
    now: datetime | None  # None = the database's clock
    settings: Settings
    monitors: Monitors | None
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
    received = Received(message, now, settings, monitors, bearer)
    try:
        return _receive(engine, received)
    except _TOLD:
        raise
    except TooCostly as error:
        _log.warning("message %d of %s: %s", message.sequence, message.run_id, error)
        return _receive(engine, replace(received, failure=str(error)))
    except Exception as error:
        _log.exception("detection failed on message %d of %s", message.sequence, message.run_id)
        told = f"{type(error).__name__}: {error}"[:500]
        return _receive(engine, replace(received, failure=told))


def _receive(engine: sql.Engine, received: Received) -> Ack:
    message = received.message
    with engine.begin() as connection:
        intake = _open(connection, received)
        reach = reached(intake.attempt.last_sequence, message)
        if reach is not None and reach > intake.attempt.last_sequence:
            _store(intake, message, reach)
        ack = acknowledgement_of(intake)
        _save(intake)
    if received.monitors is not None and not _ends(intake, message):
        received.monitors.keep(intake.run_id, intake.detection.kept())
    return ack


def _ends(intake: Intake, message: Message) -> bool:
    """Whether the run is over by this message, so that nothing more is expected of it."""
    last = message.records[-1] if message.records else None
    return isinstance(last, AttemptEnded) and last.reason in ON_PURPOSE and intake.current


def _save(intake: Intake) -> None:
    """Goes out with the COMMIT, and with samples that nothing else was asked after."""
    intake.detection.save(intake.connection)
    if intake.detection.snapshots:
        thin_snapshots(intake.connection, intake.run_id, intake.settings.detector_snapshots_kept)
    save_run(intake.connection, intake.run)
    save_attempt(intake.connection, intake.run_id, intake.attempt)


def _open(connection: sql.Connection, received: Received) -> Intake:
    """Lock the run, and make it and the attempt where they are new."""
    message, monitors = received.message, received.monitors
    key = run_key(message.run_id)
    kept = monitors.take(key) if monitors is not None else None
    try:
        opening = _opened(connection, received, kept.version if kept else -1)
    except BaseException:
        if kept is not None and monitors is not None:
            monitors.keep(key, kept)  # or whoever is refused had it read anew each time
        raise
    now, run, attempt = received.now or opening.now, opening.run, opening.attempt
    former = former_run(connection, key) if run is None else None
    if run is None:
        run = _begin_run(connection, received, opening, former)
    detection = detection_after(received.failure, connection, key, opening.state, kept)
    if received.failure is None:
        rates = monitors.base_rates(message.project) if monitors is not None else PUBLISHED
        detection.use(choice_of(opening.detection, rates.lasting_odds))
    if former is not None:  # so that no replica takes the deleted run's detector for this one's
        detection.version = max(detection.version, former.detector_version)
    rebuilds = monitors.rebuilds if monitors is not None else RebuildBudgets()
    if attempt is not None:
        intake = Intake(
            connection, received.settings, now, run, attempt, detection,
            commands=opening.commands, others=opening.others, tail=_tail(run, attempt, opening),
            rebuilds=rebuilds, bearer=received.bearer,
        )  # fmt: skip
        take_over(intake)
        intake.failure = received.failure
        return intake
    attempt, before = _register(connection, run, message, now), run.current_attempt
    intake = Intake(
        connection, received.settings, now, run, attempt, detection,
        rebuilds=rebuilds, bearer=received.bearer,
    )  # fmt: skip
    take_over(intake)
    intake.failure = received.failure
    run_lifecycle.began(intake)
    if _takes_over(connection, run, attempt, now):
        run_lifecycle.follow_attempt(intake, "it started later")
        run.current_segment = None
        run_lifecycle.sends(intake)
        if before is not None:
            give_up(intake, f"attempt {attempt.number} took over", attempt=before)
    return intake


def _opened(connection: sql.Connection, received: Received, known: int) -> Opening:
    """Lock the run and read what there is; refuse who may not send and what leaves a hole."""
    message = received.message
    opening = open_message(
        connection, run_key(message.run_id), message.project, message.attempt, known,
        received.bearer,
    )  # fmt: skip
    if received.bearer is not None:
        _check(opening.bearer, message)
    last = opening.attempt.last_sequence if opening.attempt is not None else 0
    if reached(last, message) is None:
        raise SequenceGap(last + 1, message.sequence)
    return opening


def _begin_run(
    connection: sql.Connection, received: Received, opening: Opening, former: Former | None
) -> RunRow:
    """The run that this message is the first of."""
    now = received.now or opening.now
    return make_run(
        connection, received.message.run_id, now, attempts=former.attempts if former else 0,
        incidents=former.incidents if former else 0,
    )  # fmt: skip


def _check(bearer: Bearer | None, message: Message) -> None:
    """Refuse a token that does not work any more, or not for this run."""
    if bearer is None:
        raise NotSignedIn("This token is unknown, expired or revoked", "Ask an admin for a token")
    check_scope(bearer.project, bearer.run, message.run_id)


def _tail(run: RunRow, attempt: AttemptRow, opening: Opening) -> Tail | None:
    """The newest stored step of the segment that the run is followed on."""
    here = run.current_attempt == attempt.number and run.current_segment is not None
    if not here or run.current_segment is None or opening.newest_step is None:
        return None
    return Tail(attempt.number, run.current_segment, opening.newest_step)


def _register(
    connection: sql.Connection, run: RunRow, message: Message, now: datetime
) -> AttemptRow:
    started = next((r for r in message.records if isinstance(r, AttemptStarted)), UNKNOWN_START)
    return make_attempt(
        connection, run, message.attempt, started,
        now=now, started_at=now - timedelta(seconds=message.age_s),
    )  # fmt: skip


def _takes_over(
    connection: sql.Connection, run: RunRow, attempt: AttemptRow, now: datetime
) -> bool:
    """Whether the run is followed by this attempt from now on: a backlog is not."""
    current = find_attempt(connection, run.run_id, run.current_attempt)
    if current is None or attempt.started_at >= current.started_at:
        return True
    return current.started_at > now  # the clock was set back since


def _take_back(intake: Intake) -> None:
    """Follow this attempt again where the one that took over is gone and this one lives on."""
    run, attempt = intake.run, intake.attempt
    current = find_attempt(intake.connection, run.run_id, run.current_attempt)
    assert current is not None
    gone = current.ended_at is not None or current.lost
    if not gone or attempt.ended_at is not None or attempt.alive_at <= current.alive_at:
        return
    give_up(intake, f"attempt {attempt.number} goes on", attempt=current.number)
    run_lifecycle.follow_attempt(intake, f"attempt {current.number} is gone, this one goes on")
    return_to_newest_segment(intake)


def _store(intake: Intake, message: Message, reach: int) -> None:
    attempt, run = intake.attempt, intake.run
    alive_at = intake.now - timedelta(seconds=message.age_s)
    attempt.last_sequence, attempt.last_message_at = reach, intake.now
    attempt.alive_at = max(attempt.alive_at, alive_at)
    if alive_at > intake.now - intake.silent_after:
        run_lifecycle.found(intake)
        run_lifecycle.unarchive(intake)
        if not intake.current:
            _take_back(intake)
    if intake.current and attempt.ended_at is None:
        run_lifecycle.sends(intake)
    run.last_message_at = intake.now
    take_records(intake, message)
    if intake.failure is not None:
        go_on_without(intake, intake.failure)
    else:
        _answer(intake, message)


def _answer(intake: Intake, message: Message) -> None:
    """Keep what surrounds an incident and, while it is open, ask the policy."""
    keep_aftermath(intake)
    incident = intake.incident
    if incident is None:
        return
    intake.commands = True  # one may be proposed
    copy_stored(intake, incident)
    if (
        intake.current
        and intake.attempt.ended_at is None
        and not is_history(message, intake.settings)
    ):
        answer_incident(intake, incident)
    await_answer(intake, incident)


def reached(last: int, message: Message) -> int | None:
    """The highest sequence stored once `message` is, after `last`; None if it leaves a hole."""
    gaps = sorted((r.first, r.last) for r in message.records if isinstance(r, Gap))
    reach = _over(last, gaps)
    if message.sequence > reach + 1:
        return None
    return _over(max(reach, message.sequence), gaps)


def _over(reach: int, gaps: list[tuple[int, int]]) -> int:
    for first, last in gaps:
        if first <= reach + 1:
            reach = max(reach, last)
    return reach
