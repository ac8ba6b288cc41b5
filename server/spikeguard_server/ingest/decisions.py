"""A person's approval or rejection of a command.

One transaction under the run's lock. The decision names the revision that was seen, and what was
seen is what is done; where another action or target is called for by now, the person is asked
again. Validity is judged by the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sql

from spikeguard_core.lifecycle.command_life import WAITING, WHY_LATE, CommandEvent, can, withdrawal
from spikeguard_core.policy.proposal import differs, propose
from spikeguard_protocol import CommandId, Verb, Watch
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow
from spikeguard_server.errors import RevisionChanged, Unprocessable, WrongState
from spikeguard_server.ingest.proposals import revise
from spikeguard_server.settings import Settings
from spikeguard_server.store.commands import (
    action_at,
    commands_about,
    end_command,
    move_command,
    read_command,
)
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.runs import RunRow, attempts_of, find_attempt, live_attempts, run_named
from spikeguard_server.store.situations import situation_of, targets_with_health
from spikeguard_server.store.tokens import spend_link


@dataclass(frozen=True, slots=True)
class Way:
    """How a decision came: over what, from where, and with which link if with any."""

    over: str = ""  # the API, the page, a link of a channel
    origin: str = ""  # address
    link: str | None = None  # id of the approval link, good once

    def words(self, reason: str) -> str:
        """`reason` with where it came from, for the record."""
        told = [f"by {self.over}"] * bool(self.over) + [f"from {self.origin}"] * bool(self.origin)
        return f"{reason} ({' '.join(told)})" if told else reason


UNSAID = Way()
SILENT_AFTER = timedelta(seconds=Settings().silent_after_s)


@dataclass(frozen=True, slots=True)
class _Decision:
    """What is decided on, under the run's lock."""

    connection: sql.Connection
    run: RunRow
    command: CommandRow
    person: str
    now: datetime
    way: Way
    silent_after: timedelta


def decide(
    engine: sql.Engine, command: CommandId, verdict: str, revision: int, person: str,
    reason: str = "", way: Way = UNSAID, *, now: datetime | None = None,
    silent_after: timedelta = SILENT_AFTER,
) -> None:  # fmt: skip
    """Approve or reject `revision` of `command` in the name of `person`.

    Raises `Unprocessable` for another verdict, or no reason to reject; `NotFound`;
    `RevisionChanged` where the proposal is another one by now, the new revision being stored;
    `WrongState` where it is decided, expired or void.
    """
    if verdict not in (CommandEvent.APPROVE, CommandEvent.REJECT):
        raise Unprocessable("A verdict is approve or reject", "Use the buttons", field="verdict")
    event = CommandEvent(verdict)
    if event is CommandEvent.REJECT and not reason.strip():
        raise Unprocessable(
            "A rejection needs a reason", "Say why: the record keeps it", field="reason"
        )
    with engine.begin() as connection:
        run = run_named(connection, command.incident.run, locked=True)
        found = read_command(connection, command)
        now = now or database_now(connection)
        decision = _Decision(connection, run, found, person, now, way, silent_after)
        refusal = _refused(decision, revision, event)
        if refusal is None and event is CommandEvent.APPROVE:
            refusal = _reconsidered(decision)
        if refusal is None:
            _decide(decision, event, reason)
    if refusal is not None:  # what was learned on the way is stored
        raise refusal


def _refused(
    decision: _Decision, revision: int, event: CommandEvent
) -> RevisionChanged | WrongState | None:
    """Why nothing can be decided; None if something can."""
    command, id = decision.command, decision.command.id
    if not can(command.state, event):
        words = COMMAND_STATE_WORDS[command.state]
        by = f" (decided by {command.decided_by})" if command.decided_by else ""
        return WrongState(f"{id}: {words}{by}", "Nothing is left to decide")
    if command.state in WAITING and not command.valid(decision.now, decision.run.last_step):
        _end(decision, CommandEvent.EXPIRE, WHY_LATE[command.state])
        return WrongState(f"{id} expired before it was decided", "Wait for a new proposal")
    if command.revision != revision:
        seen = action_at(decision.connection, command, revision)
        if seen != command.action:  # else it is the same offer, for whatever cause
            return RevisionChanged({"id": str(id), "revision": command.revision})
    return None


def _reconsidered(decision: _Decision) -> RevisionChanged | WrongState | None:
    """Why it cannot be approved as things stand now; None if it is still what is called for."""
    connection, run, command = decision.connection, decision.run, decision.command
    policy = policy_of(connection, run.project, run.run_id)
    if policy.halted:
        return WrongState(
            f"The kill switch of project {run.project} is on: nothing is approved",
            "An admin lifts it with `spikeguard policy resume`, or POST /v1/policy/resume",
        )
    attempts = attempts_of(connection, run.run_id)
    live = len(live_attempts(attempts, run, decision.now, decision.silent_after))
    if live > 1:
        return too_many_attempts(run, live)
    attempt = find_attempt(connection, run.run_id, command.attempt)
    assert attempt is not None
    incident = read_incident(connection, command.id.incident).incident
    targets = targets_with_health(connection, run, attempt.number)
    known = commands_about(connection, run.run_id, decision.now, incident.number)
    situation = situation_of(connection, run, attempt, incident, targets, known, decision.now)
    proposal = propose(situation, policy)
    only_watched = isinstance(proposal.action, Watch) and command.verb != Verb.WATCH
    if proposal.action is None or only_watched:
        _end(decision, withdrawal(incident.kind), proposal.reason)
        return WrongState(
            f"{command.id} is withdrawn: {proposal.reason}", "Wait for a new proposal"
        )
    if differs(command.action, proposal.action):
        revised = revise(connection, command, proposal, policy, decision.now)
        return RevisionChanged({"id": str(command.id), "revision": revised.revision})
    return None


def too_many_attempts(run: RunRow, live: int) -> WrongState:
    """Why none of the run's `live` attempts gets an order."""
    return WrongState(
        f"{live} attempts of {run.id} train at once: none gets an order", "End all but one first"
    )


def _decide(decision: _Decision, event: CommandEvent, reason: str = "") -> None:
    """Move it in the person's name. `reason`: the person's own, where they reject; an approval has
    none, and its words stand in the audit alone."""
    revision, way = decision.command.revision, decision.way
    own = reason if event is CommandEvent.REJECT else None
    told = f"approved revision {revision} as shown" if own is None else own
    move_command(
        decision.connection, decision.command, event, way.words(told), decision.now,
        actor=decision.person, decided_by=decision.person, decision_reason=own,
        decided_step=decision.run.last_step,
    )  # fmt: skip
    # A link decides once: raised inside the transaction, so that nothing was decided with it.
    if way.link is not None and not spend_link(
        decision.connection, decision.run.run_id, way.link, decision.person
    ):
        raise WrongState("This link was used before", "Sign in to see what became of it")


def _end(decision: _Decision, event: CommandEvent, reason: str) -> None:
    end_command(
        decision.connection, decision.command, event, reason, decision.now, decision.run.last_step
    )
