"""The context of one message: the open transaction, the locked run, what changed so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import Target
from spikeguard_protocol import IncidentId
from spikeguard_server.entities import CommandRow
from spikeguard_server.ingest.detection import Detection
from spikeguard_server.settings import Settings
from spikeguard_server.store import audit
from spikeguard_server.store.incidents import (
    Attempts,
    attempts_by_number,
    read_incident,
    save_incident,
)
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.runs import AttemptRow, RunRow
from spikeguard_server.store.situations import targets_with_health

NO_STEP: Final = -1  # is stored


@dataclass
class Intake:
    """A run under its lock. `run` and `attempt` change in place and are written at the end."""

    connection: sql.Connection
    settings: Settings
    now: datetime  # by the database's clock
    run: RunRow
    attempt: AttemptRow
    detection: Detection
    reach: int = 0  # the highest sequence that is stored once this message is
    stored: dict[int, tuple[int, int]] = field(default_factory=dict)  # [first, last], by segment
    unfinished: list[CommandRow] | None = None  # commands; None: not known yet
    others: bool = True  # whether another attempt may not have ended
    newest: dict[int, int] = field(default_factory=dict)  # stored step, by segment of the attempt
    failure: str | None = None  # why the domain is not asked about this message
    _incident: Incident | None = None

    @property
    def run_id(self) -> UUID:
        return self.run.run_id

    @property
    def current(self) -> bool:
        """Whether this attempt is the one that the run is followed by."""
        return self.run.current_attempt == self.attempt.number

    @property
    def silent_after(self) -> timedelta:
        return timedelta(seconds=self.settings.silent_after_s)

    @cached_property
    def attempts(self) -> Attempts:
        """The run's attempts; this one is registered before anybody asks."""
        return attempts_by_number(self.connection, self.run_id)

    @property
    def incident(self) -> Incident | None:
        """The open incident, read once, and as it was saved."""
        if self.run.open_incident is None:
            return None
        if self._incident is None or self._incident.number != self.run.open_incident:
            which = IncidentId(self.run.id, self.run.open_incident)
            self._incident = read_incident(self.connection, which).incident
        return self._incident

    def save(self, incident: Incident, history: Sequence[Incident] = ()) -> None:
        """Write the open incident as it stands now; `history` as `save_incident` takes it."""
        self._incident = incident
        number = self.attempts.numbers[incident.segment.attempt]
        save_incident(self.connection, self.run_id, incident, number, self.now, history)

    @cached_property
    def policy(self) -> Policy:
        """The policy in force: the run's own, else its project's."""
        return policy_of(self.connection, self.run.project, self.run_id)

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """What the run could go back to; asked for when all records had their effect."""
        return targets_with_health(self.connection, self.run, self.attempt.number)

    def record(
        self,
        action: str,
        reason: str,
        *,
        before: str | None = None,
        after: str | None = None,
        incident: int | None = None,
    ) -> None:
        """Write into the audit what the server did with the run, or with an incident of it."""
        of: object = self.run.id if incident is None else IncidentId(self.run.id, incident)
        audit.append(
            self.connection, self.run_id, actor=audit.SERVER, action=action, subject=str(of),
            incident=incident, before=before, after=after, reason=reason,
        )  # fmt: skip

    def set_state(self, state: str, reason: str) -> None:
        """The run is live, silent or ended from now on."""
        before, self.run.state = self.run.state, state
        if before != state:
            self.record(state, reason, before=before, after=state)

    def follow_attempt(self, reason: str) -> None:
        """The run is followed by this attempt from now on."""
        before, self.run.current_attempt = self.run.current_attempt, self.attempt.number
        if before is not None:
            mine = self.attempt.name
            self.record("attempt.followed", reason, before=f"attempt {before}", after=mine)
