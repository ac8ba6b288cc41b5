"""The inputs of a cost: how far the run is, its pace, its price.

Law: reads only, at the moment of asking: every step that passes makes a rollback dearer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.lifecycle.job_end import QUIET
from spikeguard_core.policy.cost import PACE_STEPS, StepTime, pace_of
from spikeguard_core.policy.finding import NOTHING_NAMED, DataRecord
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import Situation, Target
from spikeguard_protocol import Health, SegmentId
from spikeguard_server.store.data_records import data_record_of
from spikeguard_server.store.incidents import attempts_by_number, incident_of
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.tables.core import attempts, incident_samples, runs
from spikeguard_server.store.targets import targets_of

_S = incident_samples.c


@dataclass(frozen=True, slots=True)
class Pace:
    """A run at the moment of reading."""

    incident: Incident
    step: int
    step_time: StepTime
    tokens_per_step: int | None
    targets: tuple[Target, ...]
    policy: Policy
    data: DataRecord = NOTHING_NAMED  # of the incident's batches and of earlier ones'
    trains: bool = True  # False: it sends nothing, so that nobody knows

    def situation(self, step: int | None = None) -> Situation:
        """What the domain reckons a cost from, now or at `step`."""
        return Situation(
            incident=self.incident,
            step=self.step if step is None else step,
            position=None,
            targets=self.targets,
            capabilities=frozenset(),
            step_time_s=self.step_time.seconds,
            step_time_of=self.step_time.of_steps,
            tokens_per_step=self.tokens_per_step,
            trains=self.trains,
        )


def read_pace(connection: sql.Connection, incident: Row) -> Pace:
    """The pace of an incident's run."""
    run_id: UUID = incident.run_id
    known = attempts_by_number(connection, run_id)
    run = connection.execute(sql.select(runs).where(runs.c.run_id == run_id)).one()
    here = run.current_attempt or incident.attempt
    seen, policy = incident_of(incident, known), policy_of(connection, incident.project, run_id)
    tokens = sql.select(attempts.c.tokens_per_step).where(attempts.c.run_id == run_id)
    return Pace(
        incident=seen,
        step=run.last_step or incident.newest_step,
        step_time=read_step_time(connection, incident),
        tokens_per_step=connection.scalar(tokens.where(attempts.c.number == here)),
        targets=tuple(
            Target(
                row.name,
                SegmentId(known.ids[row.attempt], row.segment),
                row.step,
                row.position,
                row.medium,
                Health.PENDING,
            )
            for row in targets_of(connection, run_id, here)
        ),
        policy=policy,
        data=data_record_of(connection, run_id, seen, policy, known),
        trains=run.state not in QUIET,
    )


def read_step_time(connection: sql.Connection, incident: Row) -> StepTime:
    """The incident's pace, from the steps that were copied with it: the same at every reading."""
    mine = sql.and_(
        _S.run_id == incident.run_id, _S.incident == incident.number, _S.step_time.is_not(None)
    )
    here = sql.tuple_(_S.attempt, _S.segment) <= (incident.attempt, incident.segment)
    before = _times(connection, sql.and_(mine, here, _S.step < incident.onset_step))
    return pace_of(before, () if before else _times(connection, mine))


def _times(connection: sql.Connection, which: sql.ColumnElement[bool]) -> list[float]:
    """Seconds of the newest steps, the newest last."""
    newest = sql.select(_S.step_time).where(which)
    newest = newest.order_by(_S.attempt.desc(), _S.segment.desc(), _S.step.desc())
    found = connection.execute(newest.limit(PACE_STEPS)).scalars()
    return [value for value in found if math.isfinite(value)][::-1]
