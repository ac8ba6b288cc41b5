"""A person orders something: of a run, or of its open incident in place of what is proposed there.

Under the run's lock, in one transaction with the caller's yes. It is fenced to the attempt that
trains now and expires like a proposal; what the job would refuse is refused here. An order on an
incident names the proposal that was seen, and supersedes that one alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sql

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.lifecycle.command_life import IN_FLIGHT, CommandEvent
from spikeguard_core.policy.orders import Plan, Refusal, plan_of
from spikeguard_core.policy.situation import RunSituation
from spikeguard_protocol import RUN_ITSELF, CommandId, IncidentId, IncidentState, Verb, Watch
from spikeguard_protocol.phrases import action_phrase, in_paragraphs
from spikeguard_server.entities import CommandRow
from spikeguard_server.errors import Conflict, RevisionChanged, Unprocessable, WrongState
from spikeguard_server.identity.actors import Actor
from spikeguard_server.ingest.decisions import Way, why_not_now
from spikeguard_server.store.commands import (
    create_command,
    move_command,
    read_command,
    unfinished_commands,
)
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.notes import expect_effect
from spikeguard_server.store.reads.runs import read_run
from spikeguard_server.store.runs import RunRow, run_named
from spikeguard_server.store.situations import Options, read_options

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


def place_order(
    connection: sql.Connection, of: IncidentId, ordered: Ordered, person: Actor, way: Way,
    silent_after: timedelta,
) -> CommandId:  # fmt: skip
    """Write down what a person orders, with their yes: of an open incident in place of what is
    proposed there, or of the run itself where the number is `RUN_ITSELF`.

    Raise `WrongState` where nothing can be ordered, `Unprocessable` for what the job cannot do,
    `Conflict` for what waits already, `RevisionChanged` where the proposal is not what was seen.
    """
    verb, key = ordered.verb, run_named(connection, of.run, locked=True).run_id
    options = read_options(connection, read_run(connection, key, silent_after))
    if (refusal := why_no_orders(options)) is not None:
        raise refusal
    run, attempt, situation = options.run, options.attempt, options.situation
    assert attempt is not None
    assert situation is not None
    _check(connection, run, of, verb)
    plan = planned(verb, ordered.arguments, situation)
    waiting = None if of.number == RUN_ITSELF else _seen(connection, options, of, ordered)
    if waiting is not None:
        instead = f"{person} ordered to {action_phrase(plan.action)} instead"
        move_command(
            connection, waiting, CommandEvent.SUPERSEDE, instead, options.now, actor=person
        )
    policy = options.policy
    lasts = plan.action.steps if isinstance(plan.action, Watch) else policy.expires_after_steps
    made = create_command(
        connection, run, of.number, plan.action, attempt=attempt.number,
        reason=in_paragraphs(ordered.reason, *plan.warnings), policy=policy,
        now=options.now, person=person,
        expires_at=options.now + timedelta(seconds=ordered.expires_in_s),
        expires_at_step=situation.step + lasts,
    )  # fmt: skip
    if verb in CURES and ordered.expect is not None:
        expect_effect(
            connection, run, made, person, options.now, expected=ordered.expect,
            size=ordered.expect_size,
        )  # fmt: skip
    told = way.words(f"approved revision {made.revision} as shown")
    move_command(
        connection, made, CommandEvent.APPROVE, told, options.now, actor=person,
        decided_by=person, decided_step=run.last_step,
    )  # fmt: skip
    return made.id


def why_no_orders(options: Options) -> WrongState | None:
    """Why the run takes no order of any kind; None where it does."""
    run = options.run
    if options.attempt is None:
        return WrongState(f"{run.id} has no attempt that trains", "Start the job again first")
    return why_not_now(run, options.policy, options.live_attempts)


def _check(connection: sql.Connection, run: RunRow, of: IncidentId, verb: Verb) -> None:
    """It is ordered where it belongs, and nothing like it is on its way: one of each verb at a
    time, and of those that change the training one in all."""
    own = of.number == RUN_ITSELF
    known, place = (OF_RUN, "of a run") if own else (OF_INCIDENT, "of an incident")
    if verb not in known:
        raise Unprocessable(
            f"{verb} is not ordered {place}", f"One can {', '.join(sorted(known))}", field="verb"
        )
    if own and verb in CURES and run.open_incident is not None:
        raise WrongState(
            f"{run.id}#{run.open_incident} is open: a {verb} is ordered of it",
            f"POST to its commands, or `spikeguard run {run.id} …`, which finds it",
        )
    if not own and read_incident(connection, of).incident.state is IncidentState.CLOSED:
        raise WrongState(f"{of} is closed", f"Order it of the run: `spikeguard run {of.run} …`")
    alike = (verb,) if verb in (Verb.STOP, Verb.CHECKPOINT_NOW) else CURES
    for command in unfinished_commands(connection, run.run_id):
        if command.state in IN_FLIGHT and command.verb in alike:
            by = f" by {command.decided_by}" if command.decided_by else ""
            raise Conflict(
                f"{command.id} was approved{by} and has not reported yet",
                "Wait for what becomes of it, or reject it while it is not delivered",
            )


def _seen(
    connection: sql.Connection, options: Options, of: IncidentId, ordered: Ordered
) -> CommandRow | None:
    """The command that waits, if it is the one that was seen; None where nothing does."""
    waiting, seen = options.waiting, ordered.command
    if waiting is not None and (seen, ordered.revision) != (waiting.number, waiting.revision):
        raise RevisionChanged({"id": str(waiting.id), "revision": waiting.revision})
    if waiting is None and seen is not None:
        found = read_command(connection, CommandId(of, seen))
        by = f" by {found.decided_by}" if found.decided_by else ""
        raise WrongState(f"{found.id} is {found.state}{by} by now", "Look again, and order anew")
    return waiting


def planned(verb: Verb, arguments: Mapping[str, Any], situation: RunSituation) -> Plan:
    """What would be done; raise what would be refused."""
    try:
        return plan_of(verb, arguments, situation)
    except Refusal as refused:
        raise Unprocessable(refused.message, refused.remedy, field=refused.field) from None
