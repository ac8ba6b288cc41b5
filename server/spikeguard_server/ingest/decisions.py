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
from spikeguard_core.policy.settings import Policy
from spikeguard_protocol import CommandId, Verb, Watch
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow
from spikeguard_server.errors import RevisionChanged, Unprocessable, WrongState
from spikeguard_server.settings import Settings
from spikeguard_server.store.commands import (
    action_at,
    commands_about,
    end_command,
    move_command,
    read_command,
    revise_command,
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
        refusal = _refused(connection, run, found, now, event, revision)
        if refusal is None and event is CommandEvent.APPROVE:
            refusal = _reconsidered(connection, run, found, now, silent_after)
        if refusal is None:
            # Of an approval the words stand in the audit alone.
            own = reason if event is CommandEvent.REJECT else None
            told = f"approved revision {found.revision} as shown" if own is None else own
            move_command(
                connection, found, event, way.words(told), now, actor=person, decided_by=person,
                decision_reason=own, decided_step=run.last_step,
            )  # fmt: skip
            # A link decides once: raised inside the transaction, so that nothing was decided.
            if way.link is not None and not spend_link(connection, run.run_id, way.link, person):
                raise WrongState("This link was used before", "Sign in to see what became of it")
    if refusal is not None:  # what was learned on the way is stored
        raise refusal


def _refused(
    connection: sql.Connection, run: RunRow, command: CommandRow, now: datetime,
    event: CommandEvent, revision: int,
) -> RevisionChanged | WrongState | None:  # fmt: skip
    """Why nothing can be decided; None if something can."""
    if not can(command.state, event):
        words = COMMAND_STATE_WORDS[command.state]
        by = f" (decided by {command.decided_by})" if command.decided_by else ""
        return WrongState(f"{command.id}: {words}{by}", "Nothing is left to decide")
    if command.state in WAITING and not command.valid(now, run.last_step):
        late = WHY_LATE[command.state]
        end_command(connection, command, CommandEvent.EXPIRE, late, now, run.last_step)
        return WrongState(f"{command.id} expired before it was decided", "Wait for a new proposal")
    if command.revision != revision:
        seen = action_at(connection, command, revision)
        if seen != command.action:  # else it is the same offer, for whatever cause
            return RevisionChanged({"id": str(command.id), "revision": command.revision})
    return None


def _reconsidered(
    connection: sql.Connection, run: RunRow, command: CommandRow, now: datetime,
    silent_after: timedelta,
) -> RevisionChanged | WrongState | None:  # fmt: skip
    """Why it cannot be approved as things stand now; None if it is still what is called for."""
    policy = policy_of(connection, run.project, run.run_id)
    live = live_attempts(attempts_of(connection, run.run_id), run, now, silent_after)
    if (refusal := why_not_now(run, policy, len(live))) is not None:
        return refusal
    attempt = find_attempt(connection, run.run_id, command.attempt)
    assert attempt is not None
    incident = read_incident(connection, command.id.incident).incident
    targets = targets_with_health(connection, run, attempt.number)
    known = commands_about(connection, run.run_id, now, incident.number)
    situation = situation_of(connection, run, attempt, incident, targets, known, now)
    proposal = propose(situation, policy)
    only_watched = isinstance(proposal.action, Watch) and command.verb != Verb.WATCH
    if proposal.action is None or only_watched:
        event = withdrawal(incident.kind)
        end_command(connection, command, event, proposal.reason, now, run.last_step)
        return WrongState(
            f"{command.id} is withdrawn: {proposal.reason}", "Wait for a new proposal"
        )
    if differs(command.action, proposal.action):
        revised = revise_command(connection, command, proposal, policy, now)
        return RevisionChanged({"id": str(command.id), "revision": revised.revision})
    return None


def why_not_now(run: RunRow, policy: Policy, live: int) -> WrongState | None:
    """Why none of the run's `live` attempts gets anything to do; None where it may."""
    if policy.halted:
        return WrongState(
            f"The kill switch of project {run.project} is on: nothing is approved or ordered",
            "An admin lifts it with `spikeguard policy resume`, or POST /v1/policy/resume",
        )
    if live > 1:
        return WrongState(
            f"{live} attempts of {run.id} train at once: none gets an order",
            "End all but one first",
        )
    return None
