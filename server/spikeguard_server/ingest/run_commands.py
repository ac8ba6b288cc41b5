"""A person orders something of a run that has no incident, or whatever its incident: save a
checkpoint now, stop.

Law: under the run's lock. It is fenced to the attempt that trains now and expires like a proposal;
what the job did not say that it can do is refused here. One of each verb at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import sqlalchemy as sql

from spikeguard_protocol import (
    RUN_ITSELF,
    Action,
    CheckpointNow,
    CommandId,
    IncidentId,
    RunId,
    Stop,
    Verb,
    abilities_from_settings,
)
from spikeguard_server.errors import Conflict, IllegalMove, Unprocessable
from spikeguard_server.identity.actors import Actor
from spikeguard_server.store.clock import database_now
from spikeguard_server.store.commands import unfinished_commands
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.run_commands import (
    MAX_RUN_COMMANDS,
    count_run_commands,
    create_run_command,
)
from spikeguard_server.store.runs import AttemptRow, RunRow, attempts_of, lock_run, settings_of

ACTIONS: Final[Mapping[Verb, Action]] = {Verb.CHECKPOINT_NOW: CheckpointNow(), Verb.STOP: Stop()}


@dataclass(frozen=True, slots=True)
class Ordered:
    """What a person wants of a run."""

    verb: Verb  # of ACTIONS
    reason: str
    within_s: float  # void after that


def order_of_run(
    connection: sql.Connection, run: RunId, wanted: Ordered, person: Actor
) -> CommandId:
    """Let it wait for a yes; whoever ordered it may say it. Raise `IllegalMove` where nothing can
    be ordered, `Unprocessable` for what the job cannot do, `Conflict` for what waits already."""
    key = existing_run(connection, run)
    row = lock_run(connection, key)
    if row is None:  # deleted meanwhile
        existing_run(connection, run)
    assert row is not None
    _check_waiting(connection, row, wanted.verb)
    _check_ability(connection, row, _training(connection, row), wanted.verb)
    policy, now = policy_of(connection, run.project, key), database_now(connection)
    if policy.halted:
        raise IllegalMove(
            f"The kill switch of project {run.project} is on: nothing is ordered",
            "An admin lifts it with `spikeguard policy resume`, or POST /v1/policy/resume",
        )
    made = create_run_command(
        connection, row, ACTIONS[wanted.verb], person=person, reason=wanted.reason, policy=policy,
        now=now, expires_at=now + timedelta(seconds=wanted.within_s),
        expires_at_step=(row.last_step or 0) + policy.expires_after_steps,
    )  # fmt: skip
    return CommandId(IncidentId(run, RUN_ITSELF), made.number)


def _check_waiting(connection: sql.Connection, run: RunRow, verb: Verb) -> None:
    for command in unfinished_commands(connection, run.run_id):
        if command.incident == RUN_ITSELF and command.verb == verb:
            raise Conflict(
                f"{command.public_id(run.id)} is {command.state}: one {verb} at a time",
                "Wait for what becomes of it, or reject it",
            )
    if count_run_commands(connection, run.run_id) >= MAX_RUN_COMMANDS:
        raise Conflict(
            f"Run {run.id} was given {MAX_RUN_COMMANDS:,} commands, which is the most",
            "Order it of the job itself",
        )


def _training(connection: sql.Connection, run: RunRow) -> AttemptRow:
    """The attempt that trains now."""
    found = attempts_of(connection, run.run_id)
    current = next((each for each in found if each.number == run.current_attempt), None)
    if current is None or current.ended_at is not None or current.lost:
        raise IllegalMove(f"{run.id} has no attempt that trains", "Start the job again first")
    return current


def _check_ability(
    connection: sql.Connection, run: RunRow, attempt: AttemptRow, verb: Verb
) -> None:
    if verb.value in attempt.capabilities:
        return
    known = abilities_from_settings(settings_of(connection, run.run_id, attempt.number))
    ability = next((each for each in known if each.name == verb.value), None)
    why = "its job did not say that it can" if ability is None else ability.reason
    remedy = "" if ability is None else ability.remedy
    raise Unprocessable(
        f"{run.id} cannot be ordered to {verb}: {why}",
        remedy or "docs/agent.md says what a job needs for it",
        field="verb",
    )
