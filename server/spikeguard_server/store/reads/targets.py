"""What a run could go back to, as the API shows it.

Law: reads only. A target off the line that is trained now can never be named, and is suspect.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sql

from spikeguard_protocol import Health
from spikeguard_server.store.incidents import attempts_by_number, find_incident
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.runs import AttemptRow, RunRow, attempts_of
from spikeguard_server.store.situations import kept_targets, targets_with_health
from spikeguard_server.store.targets import TargetRow, targets_of


@dataclass(frozen=True, slots=True)
class ShownTarget:
    """A target with what is held of it."""

    row: TargetRow
    attempt_id: str
    health: Health
    protected: bool  # agents keep it: a decision may still want it


def read_targets(connection: sql.Connection, row: Row) -> list[ShownTarget]:
    """The targets of a run that exist, newest first."""
    run = RunRow(**{name: row._mapping[name] for name in RunRow.__dataclass_fields__})
    current = _current(connection, run)
    if current is None:
        return []
    known = attempts_by_number(connection, run.run_id)
    policy = policy_of(connection, run.project, run.run_id)
    judged = targets_with_health(connection, run, current, known, policy)
    health = {target.name: target.health for target in judged}
    incident = None
    if run.open_incident is not None:
        incident = find_incident(connection, run.run_id, run.open_incident, known)
    kept = kept_targets(connection, run, judged, incident, policy)  # as the agent is told
    found = reversed(targets_of(connection, run.run_id, current.number))
    return [
        ShownTarget(t, known.ids[t.attempt], health.get(t.name, Health.SUSPECT), t.name in kept)
        for t in found
    ]


def _current(connection: sql.Connection, run: RunRow) -> AttemptRow | None:
    found = attempts_of(connection, run.run_id)
    return next((a for a in found if a.number == run.current_attempt), None)
