"""What a person may order of a run now: its verbs, its targets and what going back would cost.

Law: reads only. The price of an open incident is that of its proposals; without one the pace is
that of the run's newest steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sql

from spikeguard_core.policy.cost import PACE_STEPS, StepTime, pace_of
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import RunSituation
from spikeguard_protocol import CommandState, Signal
from spikeguard_server.store.clock import database_now
from spikeguard_server.store.incidents import attempts_by_number
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.costs import read_step_time
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.reads.incidents import open_incident
from spikeguard_server.store.runs import AttemptRow, RunRow, attempts_of
from spikeguard_server.store.samples import read_samples
from spikeguard_server.store.situations import run_situation_of
from spikeguard_server.store.tables.core import commands, targets


@dataclass(frozen=True, slots=True)
class Options:
    """A run as somebody sees it who is about to order something."""

    run: RunRow
    attempt: AttemptRow | None  # that trains now; None: nothing can be ordered
    situation: RunSituation | None  # with its pace
    policy: Policy
    now: datetime
    saved_at: Mapping[str, datetime]  # of the targets, by name
    incident: int | None  # the open one
    waiting: Row | None  # its command that waits


def read_options(connection: sql.Connection, row: Row) -> Options:
    """The options of the run in `row`."""
    run = RunRow(**{name: row._mapping[name] for name in RunRow.__dataclass_fields__})
    policy, now = policy_of(connection, run.project, run.run_id), database_now(connection)
    attempt = _training(connection, run)
    incident = open_incident(connection, run.run_id)
    situation = None
    if attempt is not None:
        known = attempts_by_number(connection, run.run_id)
        situation = run_situation_of(connection, run, attempt, known, policy, now)
        pace = _pace(connection, run) if incident is None else read_step_time(connection, incident)
        situation = replace(situation, step_time_s=pace.seconds, step_time_of=pace.of_steps)
    return Options(
        run, attempt, situation, policy, now, _saved_at(connection, run),
        None if incident is None else incident.number,
        None if incident is None else _waiting(connection, incident),
    )  # fmt: skip


def _training(connection: sql.Connection, run: RunRow) -> AttemptRow | None:
    found = attempts_of(connection, run.run_id)
    current = next((each for each in found if each.number == run.current_attempt), None)
    over = current is None or current.ended_at is not None or current.lost
    return None if over else current


def _pace(connection: sql.Connection, run: RunRow) -> StepTime:
    """By the newest steps of the segment that is trained now."""
    if run.current_attempt is None or run.current_segment is None or run.last_step is None:
        return StepTime()
    newest = read_samples(
        connection, run.run_id, run.current_attempt, run.current_segment,
        run.last_step - PACE_STEPS, run.last_step,
    )  # fmt: skip
    taken = [sample.values.get(Signal.STEP_TIME) for sample in newest]
    return pace_of([value for value in taken if value is not None and math.isfinite(value)])


def _saved_at(connection: sql.Connection, run: RunRow) -> dict[str, datetime]:
    c = targets.c
    here = sql.select(c.name, c.saved_at).where(c.run_id == run.run_id, c.deleted_at.is_(None))
    return {row.name: row.saved_at for row in connection.execute(here)}


def _waiting(connection: sql.Connection, incident: Row) -> Row | None:
    c = commands.c
    mine = sql.select(commands).where(
        c.run_id == incident.run_id,
        c.incident == incident.number,
        c.state == CommandState.PROPOSED.value,
    )
    return connection.execute(mine.order_by(c.number.desc()).limit(1)).one_or_none()
