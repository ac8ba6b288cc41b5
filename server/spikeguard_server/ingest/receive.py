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

from spikeguard_core.lifecycle.command_life import IN_FLIGHT, WAITING, CommandEvent
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import (
    Ack,
    CommandState,
    Gap,
    Message,
    Order,
    ProtocolError,
)
from spikeguard_server.entities import CommandRow
from spikeguard_server.errors import NotSignedIn, SequenceGap, ServiceError
from spikeguard_server.identity.permissions import check_scope
from spikeguard_server.ingest.detection import Monitors, choice_of, detection_in, detection_of
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.ingest.proposals import answer_incident, await_answer
from spikeguard_server.ingest.records import return_to_newest_segment, take_records
from spikeguard_server.ingest.results import give_up, not_halted
from spikeguard_server.ingest.spikes import (
    go_on_without,
    keep_aftermath,
    keep_stored,
    take_over,
)
from spikeguard_server.log_format import add_context
from spikeguard_server.settings import Settings
from spikeguard_server.store.commands import commands_about, move_command, unfinished_commands
from spikeguard_server.store.deleted_runs import former_run
from spikeguard_server.store.detectors import Opening, open_message, thinning
from spikeguard_server.store.engine import ask, write
from spikeguard_server.store.reads.runs import HISTORY_AFTER_S
from spikeguard_server.store.runs import (
    LIVE,
    attempts_of,
    find_attempt,
    live_attempts,
    make_attempt,
    make_run,
    update_of_both,
)
from spikeguard_server.store.situations import kept_targets
from spikeguard_server.store.tables.core import run_key

_TOLD = (ServiceError, ProtocolError, SQLAlchemyError)  # what is no fault of the domain's

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Received:
    """A message with all that it is taken by."""

    message: Message
    settings: Settings
    monitors: Monitors
    bearer: bytes | None = None  # hash of the secret that it came with; None = judged already
    now: datetime | None = None  # None = the database's clock
    failure: str | None = None  # why it is stored without asking the domain


def receive(engine: sql.Engine, received: Received) -> Ack:
    """Store a message, detect on it, and answer; durable when this returns.

    The token is judged in the same transaction. Raises `SequenceGap` for a message that leaves a
    hole, `Unready` for a detector state that this version cannot read, `NotSignedIn`, `Forbidden`.
    """
    message = received.message
    add_context(run=str(message.run_id))
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
        kept.row.version if kept else -1, received.bearer,
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
        detection.row.version = max(detection.row.version, former.detector_version)
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
        silent_s = (intake.now - run.last_message_at).total_seconds()
        intake.set_state(LIVE, f"{attempt.name} sends, after {silent_s:.0f} s of silence")
    run.last_message_at = intake.now
    take_records(intake, message)
    if intake.failure is not None:
        go_on_without(intake)
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


def acknowledgement_of(intake: Intake) -> Ack:
    """What is stored, which orders wait, which targets to keep.

    Orders go to the one live attempt that the run is followed by, while they are valid by the
    database's clock, again and again until a result is stored.
    """
    connection, run, mine, live = intake.connection, intake.run, intake.attempt, 1
    if intake.others:
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
