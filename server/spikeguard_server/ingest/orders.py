"""A person orders something: of a run, or of its open incident in place of what is proposed there.

Under the run's lock, in one transaction with the caller's yes. It is fenced to the attempt that
trains now and expires like a proposal; what the job would refuse is refused here. An order on an
incident names the proposal that was seen, and supersedes that one alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

import sqlalchemy as sql

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.lifecycle.command_life import IN_FLIGHT, WAITING, CommandEvent
from spikeguard_core.policy.orders import Plan, Refusal, plan_of
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import RunSituation
from spikeguard_protocol import RUN_ITSELF, CommandId, IncidentId, IncidentState, RunId, Verb, Watch
from spikeguard_protocol.phrases import action_phrase, in_paragraphs
from spikeguard_server.entities import CommandRow
from spikeguard_server.errors import Conflict, NotFound, RevisionChanged, Unprocessable, WrongState
from spikeguard_server.identity.actors import Actor
from spikeguard_server.store.commands import (
    commands_of,
    create_command,
    move_command,
    unfinished_commands,
)
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import find_incident
from spikeguard_server.store.notes import expect_effect
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.runs import AttemptRow, RunRow, run_named, training_attempt
from spikeguard_server.store.situations import run_situation_of

OF_INCIDENT: Final = frozenset({*CURES, Verb.WATCH, Verb.STOP})  # what stands in for a proposal
OF_RUN: Final = frozenset({*CURES, Verb.CHECKPOINT_NOW, Verb.STOP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """What a person wants, why, and what they expect of it."""

    verb: Verb
    arguments: Mapping[str, Any]  # as a command shows them
    reason: str
    expires_in_s: float
    expect: ExpectedEffect | None = None  # of the loss, against its trend
    expect_size: float | None = None  # nats
    command: int | None = None  # number of the proposal that was seen, which it replaces
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """A run that can be ordered something, under its lock."""

    connection: sql.Connection
    run: RunRow
    attempt: AttemptRow
    policy: Policy
    now: datetime
    situation: RunSituation


def place_order(
    connection: sql.Connection, of: IncidentId, ordered: Ordered, person: Actor
) -> CommandId:
    """Write down what a person orders: of an open incident in place of what is proposed there, or
    of the run itself where the number is `RUN_ITSELF`.

    Raise `IllegalMove` where nothing can be ordered, `Unprocessable` for what the job cannot do,
    `Conflict` for what waits already, `RevisionChanged` where the proposal is not what was seen.
    """
    standing, verb, waiting = stand(connection, of.run), ordered.verb, None
    if of.number == RUN_ITSELF:
        _check_verb(verb, OF_RUN, "of a run")
        _check_run(standing, verb)
    else:
        _check_verb(verb, OF_INCIDENT, "of an incident")
        _check_open(standing, of)
        commands = commands_of(connection, standing.run.run_id, of.number)
        _check_in_flight(standing, verb)
        waiting = _seen(commands, ordered)
    plan = planned(verb, ordered.arguments, standing.situation)
    if waiting is not None:
        instead = f"{person} ordered to {action_phrase(plan.action)} instead"
        move_command(
            connection, waiting, CommandEvent.SUPERSEDE, instead, standing.now, actor=person
        )
    policy = standing.policy
    lasts = plan.action.steps if isinstance(plan.action, Watch) else policy.expires_after_steps
    made = create_command(
        connection, standing.run, of.number, plan.action, attempt=standing.attempt.number,
        reason=in_paragraphs(ordered.reason, *plan.warnings), policy=policy,
        now=standing.now, replaces=None if waiting is None else waiting.number, person=person,
        expires_at=standing.now + timedelta(seconds=ordered.expires_in_s),
        expires_at_step=standing.situation.step + lasts,
    )  # fmt: skip
    if verb in CURES and ordered.expect is not None:
        expect_effect(
            connection, standing.run, made, person, standing.now, expected=ordered.expect,
            size=ordered.expect_size,
        )  # fmt: skip
    return made.id


def stand(connection: sql.Connection, run: RunId) -> Standing:
    """Lock the run; raise `IllegalMove` where it takes no orders."""
    row = run_named(connection, run, locked=True)
    attempt = training_attempt(connection, row)
    if attempt is None:
        raise WrongState(f"{run} has no attempt that trains", "Start the job again first")
    policy, now = policy_of(connection, run.project, row.run_id), database_now(connection)
    if policy.halted:
        raise WrongState(
            f"The kill switch of project {run.project} is on: nothing is ordered",
            "An admin lifts it with `spikeguard policy resume`, or POST /v1/policy/resume",
        )
    situation = run_situation_of(connection, row, attempt, now)
    return Standing(connection, row, attempt, policy, now, situation)


def _check_verb(verb: Verb, known: frozenset[Verb], place: str) -> None:
    if verb not in known:
        raise Unprocessable(
            f"{verb} is not ordered {place}", f"One can {', '.join(sorted(known))}", field="verb"
        )


def _check_run(standing: Standing, verb: Verb) -> None:
    """One of each verb at a time, and of those that change the training one in all."""
    run = standing.run
    if verb in CURES and run.open_incident is not None:
        raise WrongState(
            f"{run.id}#{run.open_incident} is open: a {verb} is ordered of it",
            f"POST to its commands, or `spikeguard run {run.id} …`, which finds it",
        )
    alike = CURES if verb in CURES else (verb,)
    for command in unfinished_commands(standing.connection, run.run_id):
        mine = command.incident == RUN_ITSELF or (verb in CURES and command.state in IN_FLIGHT)
        if mine and command.verb in alike:
            raise Conflict(
                f"{command.id} is {command.state}: one {command.verb} at a time",
                "Wait for what becomes of it, or reject it",
            )


def _check_open(standing: Standing, incident: IncidentId) -> None:
    found = find_incident(standing.connection, standing.run.run_id, incident.number)
    if found is None:
        raise NotFound(f"There is no incident {incident}", "`spikeguard incidents` lists them")
    if found.state is IncidentState.CLOSED:
        raise WrongState(
            f"{incident} is closed", f"Order it of the run: `spikeguard run {incident.run} …`"
        )


def _check_in_flight(standing: Standing, verb: Verb) -> None:
    """What was approved and has not reported is waited for; a stop alone is not held up by it."""
    for command in unfinished_commands(standing.connection, standing.run.run_id):
        if verb is not Verb.STOP and command.state in IN_FLIGHT and command.verb in CURES:
            by = f" by {command.decided_by}" if command.decided_by else ""
            raise Conflict(
                f"{command.id} was approved{by} and has not reported yet",
                "Wait for what becomes of it, or reject it while it is not delivered",
            )


def _seen(commands: Sequence[CommandRow], ordered: Ordered) -> CommandRow | None:
    """The command that waits, if it is the one that was seen; None where nothing does."""
    waiting = next((command for command in commands if command.state in WAITING), None)
    if waiting is None:
        if ordered.command is not None:
            _decided_meanwhile(commands, ordered.command)
        return None
    if (ordered.command, ordered.revision) != (waiting.number, waiting.revision):
        raise RevisionChanged({"id": str(waiting.id), "revision": waiting.revision})
    return waiting


def _decided_meanwhile(commands: Sequence[CommandRow], seen: int) -> NoReturn:
    found = next((command for command in commands if command.number == seen), None)
    if found is None:
        raise NotFound(f"There is no command {seen} of this incident", "Look again")
    by = f" by {found.decided_by}" if found.decided_by else ""
    raise WrongState(f"{found.id} is {found.state}{by} by now", "Look again, and order anew")


def planned(verb: Verb, arguments: Mapping[str, Any], situation: RunSituation) -> Plan:
    """What would be done; raise what would be refused."""
    try:
        return plan_of(verb, arguments, situation)
    except Refusal as refused:
        raise Unprocessable(refused.message, refused.remedy, field=refused.field) from None
