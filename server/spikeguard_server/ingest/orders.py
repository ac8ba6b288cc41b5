"""A person orders something: of a run, or of its open incident in place of what is proposed there.

Law: under the run's lock, in one transaction with the caller's yes. It is fenced to the attempt
that trains now and expires like a proposal; what the job would refuse is refused here. An order on
an incident names the proposal that was seen, and supersedes that one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NoReturn

import sqlalchemy as sql

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.lifecycle.command_life import IN_FLIGHT, WAITING, CommandEvent
from spikeguard_core.policy.orders import OrderRequest, Plan, Refusal, plan_of
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import RunSituation
from spikeguard_protocol import (
    RUN_ITSELF,
    Action,
    CommandId,
    IncidentId,
    IncidentState,
    RunId,
    Verb,
    Watch,
)
from spikeguard_protocol.phrases import action_phrase, in_paragraphs
from spikeguard_server.errors import Conflict, NotFound, RevisionChanged, Unprocessable, WrongState
from spikeguard_server.identity.actors import Actor
from spikeguard_server.store.clock import database_now
from spikeguard_server.store.commands import (
    CommandRow,
    commands_of,
    create_command,
    move_command,
    unfinished_commands,
)
from spikeguard_server.store.effects import expect_effect
from spikeguard_server.store.incidents import attempts_by_number, find_incident
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.run_commands import (
    MAX_RUN_COMMANDS,
    count_run_commands,
    create_run_command,
)
from spikeguard_server.store.runs import AttemptRow, RunRow, attempts_of, lock_run
from spikeguard_server.store.situations import run_situation_of

MAX_OF_INCIDENT: Final = 500  # commands of one incident, from which people may order no more
OF_INCIDENT: Final = frozenset({*CURES, Verb.WATCH, Verb.STOP})  # what stands in for a proposal
OF_RUN: Final = frozenset({*CURES, Verb.CHECKPOINT_NOW, Verb.STOP})


@dataclass(frozen=True, slots=True)
class SeenProposal:
    """The proposal of an incident that somebody had before their eyes."""

    command: int
    revision: int


@dataclass(frozen=True, slots=True)
class Ordered:
    """What a person wants, why, and what they expect of it."""

    wanted: OrderRequest
    reason: str
    within_s: float  # void after that
    expected: ExpectedEffect | None = None  # of the loss, against its trend
    expected_size: float | None = None  # nats


@dataclass(frozen=True, slots=True)
class Standing:
    """A run that can be ordered something, under its lock."""

    connection: sql.Connection
    run: RunRow
    attempt: AttemptRow
    policy: Policy
    now: datetime
    situation: RunSituation


def order_of_run(
    connection: sql.Connection, run: RunId, ordered: Ordered, person: Actor
) -> CommandId:
    """Write down what a person orders of the run itself. Raise
    `IllegalMove` where nothing can be ordered, `Unprocessable` for what the job cannot do,
    `Conflict` for what waits already."""
    standing = stand(connection, run)
    verb = ordered.wanted.verb
    _check_verb(verb, OF_RUN, "of a run")
    if verb in CURES and standing.run.open_incident is not None:
        raise WrongState(
            f"{run}#{standing.run.open_incident} is open: a {verb} is ordered of it",
            f"POST to its commands, or `spikeguard run {run} …`, which finds it",
        )
    _check_waiting(standing, verb)
    plan = _planned(standing, ordered)
    made = create_run_command(
        connection, standing.run, plan.action, person=person, reason=_why(ordered, plan),
        policy=standing.policy, now=standing.now,
        expires_at=standing.now + timedelta(seconds=ordered.within_s),
        expires_at_step=_void_at_step(standing, plan.action),
    )  # fmt: skip
    return _made(standing, made, ordered, person)


def order_on_incident(
    connection: sql.Connection,
    incident: IncidentId,
    ordered: Ordered,
    person: Actor,
    seen: SeenProposal | None,
) -> CommandId:
    """The same of an open incident, in place of what is proposed there; raise `RevisionChanged`
    where that is not what was `seen`."""
    standing = stand(connection, incident.run)
    _check_verb(ordered.wanted.verb, OF_INCIDENT, "of an incident")
    _check_open(standing, incident)
    commands = commands_of(connection, standing.run.run_id, incident.number)
    _check_in_flight(standing, ordered.wanted.verb, commands)
    waiting = _seen(standing, commands, seen)
    plan = _planned(standing, ordered)
    if waiting is not None:
        instead = f"{person} ordered to {action_phrase(plan.action)} instead"
        move_command(
            connection, standing.run.run_id, incident.run, waiting, CommandEvent.SUPERSEDE,
            actor=person, reason=instead, now=standing.now,
        )  # fmt: skip
    made = create_command(
        connection, standing.run.run_id, incident.run, incident.number, plan.action,
        attempt=standing.attempt.number, reason=_why(ordered, plan), policy=standing.policy,
        now=standing.now, replaces=None if waiting is None else waiting.number, person=person,
        expires_at=standing.now + timedelta(seconds=ordered.within_s),
        expires_at_step=_void_at_step(standing, plan.action),
    )  # fmt: skip
    return _made(standing, made, ordered, person)


def stand(connection: sql.Connection, run: RunId) -> Standing:
    """Lock the run; raise `IllegalMove` where it takes no orders."""
    row = lock_run(connection, existing_run(connection, run))
    if row is None:  # deleted meanwhile
        existing_run(connection, run)
    assert row is not None
    attempt = _training(connection, row)
    policy, now = policy_of(connection, run.project, row.run_id), database_now(connection)
    if policy.halted:
        raise WrongState(
            f"The kill switch of project {run.project} is on: nothing is ordered",
            "An admin lifts it with `spikeguard policy resume`, or POST /v1/policy/resume",
        )
    known = attempts_by_number(connection, row.run_id)
    situation = run_situation_of(connection, row, attempt, known, policy, now)
    return Standing(connection, row, attempt, policy, now, situation)


def _training(connection: sql.Connection, run: RunRow) -> AttemptRow:
    """The attempt that trains now."""
    found = attempts_of(connection, run.run_id)
    current = next((each for each in found if each.number == run.current_attempt), None)
    if current is None or current.ended_at is not None or current.lost:
        raise WrongState(f"{run.id} has no attempt that trains", "Start the job again first")
    return current


def _check_verb(verb: Verb, known: frozenset[Verb], place: str) -> None:
    if verb not in known:
        raise Unprocessable(
            f"{verb} is not ordered {place}", f"One can {', '.join(sorted(known))}", field="verb"
        )


def _check_waiting(standing: Standing, verb: Verb) -> None:
    """One of each verb at a time, and of those that change the training one in all."""
    run = standing.run
    alike = CURES if verb in CURES else (verb,)
    for command in unfinished_commands(standing.connection, run.run_id):
        mine = command.incident == RUN_ITSELF or (verb in CURES and command.state in IN_FLIGHT)
        if mine and command.verb in alike:
            raise Conflict(
                f"{command.public_id(run.id)} is {command.state}: one {command.verb} at a time",
                "Wait for what becomes of it, or reject it",
            )
    if count_run_commands(standing.connection, run.run_id) >= MAX_RUN_COMMANDS:
        raise Conflict(
            f"Run {run.id} was given {MAX_RUN_COMMANDS:,} commands, which is the most",
            "Order it of the job itself",
        )


def _check_open(standing: Standing, incident: IncidentId) -> None:
    attempts = attempts_by_number(standing.connection, standing.run.run_id)
    found = find_incident(
        standing.connection, standing.run.run_id, incident.number, attempts
    )  # fmt: skip
    if found is None:
        raise NotFound(f"There is no incident {incident}", "`spikeguard incidents` lists them")
    if found.state is IncidentState.CLOSED:
        raise WrongState(
            f"{incident} is closed", f"Order it of the run: `spikeguard run {incident.run} …`"
        )


def _check_in_flight(standing: Standing, verb: Verb, commands: Sequence[CommandRow]) -> None:
    """What was approved and has not reported is waited for; a stop alone is not held up by it."""
    others = unfinished_commands(standing.connection, standing.run.run_id)
    for command in others:
        if verb is not Verb.STOP and command.state in IN_FLIGHT and command.verb in CURES:
            raise _on_its_way(standing.run.id, command)
    if len(commands) >= MAX_OF_INCIDENT:
        raise Conflict(
            f"The incident has {MAX_OF_INCIDENT:,} commands, which is the most",
            "Order it of the job itself",
        )


def _on_its_way(run: RunId, command: CommandRow) -> Conflict:
    by = f" by {command.decided_by}" if command.decided_by else ""
    reached = f"{command.public_id(run)} was approved{by} and has not reported yet"
    return Conflict(reached, "Wait for what becomes of it, or reject it while it is not delivered")


def _seen(
    standing: Standing, commands: Sequence[CommandRow], seen: SeenProposal | None
) -> CommandRow | None:
    """The command that waits, if it is the one that was seen; None where nothing does."""
    waiting = next((command for command in commands if command.state in WAITING), None)
    if waiting is None:
        if seen is not None:
            _decided_meanwhile(standing.run.id, commands, seen)
        return None
    if seen is None or (seen.command, seen.revision) != (waiting.number, waiting.revision):
        raise RevisionChanged(
            {"id": waiting.public_id(standing.run.id), "revision": waiting.revision}
        )
    return waiting


def _decided_meanwhile(run: RunId, commands: Sequence[CommandRow], seen: SeenProposal) -> NoReturn:
    found = next((command for command in commands if command.number == seen.command), None)
    if found is None:
        raise NotFound(f"There is no command {seen.command} of this incident", "Look again")
    by = f" by {found.decided_by}" if found.decided_by else ""
    raise WrongState(
        f"{found.public_id(run)} is {found.state}{by} by now", "Look again, and order anew"
    )


def _planned(standing: Standing, ordered: Ordered) -> Plan:
    plan = plan_of(ordered.wanted, standing.situation)
    if isinstance(plan, Refusal):
        raise Unprocessable(plan.message, plan.remedy, field=plan.field)
    return plan


def _why(ordered: Ordered, plan: Plan) -> str:
    """The reason with what the person was warned of, which the record keeps as well."""
    return in_paragraphs(ordered.reason, *plan.warnings)


def _void_at_step(standing: Standing, action: Action) -> int:
    steps = action.steps if isinstance(action, Watch) else standing.policy.expires_after_steps
    return standing.situation.step + steps


def _made(standing: Standing, made: CommandRow, ordered: Ordered, person: Actor) -> CommandId:
    if ordered.wanted.verb in CURES and ordered.expected is not None:
        expect_effect(
            standing.connection, standing.run, made, person, standing.now,
            expected=ordered.expected, size=ordered.expected_size,
        )  # fmt: skip
    return CommandId(IncidentId(standing.run.id, made.incident), made.number)
