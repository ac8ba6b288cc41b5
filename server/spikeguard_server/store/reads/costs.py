"""What an order costs and what may be ordered: how far a run is, its pace, its price, its targets.

Reads only, at the moment of asking: every step that passes makes a rollback dearer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sql

from spikeguard_core.lifecycle.command_life import WAITING
from spikeguard_core.lifecycle.job_end import QUIET
from spikeguard_core.policy.cost import PACE_STEPS, pace_of
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import RunSituation, Situation
from spikeguard_protocol import Signal
from spikeguard_server.entities import CommandRow, IncidentRow
from spikeguard_server.store.chunks import SegmentKey, read_curves
from spikeguard_server.store.commands import commands_of
from spikeguard_server.store.curves import Curves
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import open_incident
from spikeguard_server.store.paging import Row
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.runs import AttemptRow, RunRow, find_attempt, run_row, training_attempt
from spikeguard_server.store.samples import kept_curves
from spikeguard_server.store.situations import run_situation_of, targets_with_health
from spikeguard_server.store.tables.core import targets


@dataclass(frozen=True, slots=True)
class Pace:
    """The run of an incident at the moment of reading, by which costs are reckoned; what was
    ordered before, and what the job can do, is left out."""

    situation: Situation
    policy: Policy


def read_pace(connection: sql.Connection, row: IncidentRow) -> Pace:
    """The pace of an incident's run."""
    run_id, incident = row.run_id, row.incident
    run = run_row(connection, run_id)
    assert run is not None
    here = run.current_attempt or row.attempt
    policy = policy_of(connection, run.project, run_id)
    attempt = find_attempt(connection, run_id, here)
    situation = Situation(
        incident=incident,
        step=run.last_step or incident.newest_step,
        position=None,
        targets=targets_with_health(connection, run, here),
        capabilities=frozenset(),
        step_time_s=read_step_time(connection, row),
        tokens_per_step=None if attempt is None else attempt.tokens_per_step,
        trains=run.state not in QUIET and run.current_segment is not None,
    )  # fmt: skip
    return Pace(situation, policy)


def read_step_time(connection: sql.Connection, row: IncidentRow) -> float | None:
    """Seconds a step, from the steps that are kept with the incident: the same at every reading."""
    kept = kept_curves(connection, row.run_id, row.number, [Signal.STEP_TIME])
    onset = row.incident.onset_step
    here = [c for segment, c in kept if (segment.attempt, segment.id.number) <= row.place]
    before = [seconds for c in here for seconds in _times(c.between(0, onset - 1))]
    return pace_of(before, [seconds for _, c in kept for seconds in _times(c)])


def _times(curves: Curves) -> list[float]:
    """Seconds of the steps that measured it, the newest last."""
    column = curves.signals.get(Signal.STEP_TIME)
    taken = [] if column is None else column.list()
    return [seconds for seconds in taken if seconds is not None and math.isfinite(seconds)]


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
    onset_step: int | None  # its newest onset
    waiting: CommandRow | None  # its command that waits
    live_attempts: int  # above 1 nobody gets orders


def read_options(connection: sql.Connection, row: Row) -> Options:
    """The options of the run in `row`."""
    run = RunRow.of(row)
    policy, now = policy_of(connection, run.project, run.run_id), database_now(connection)
    attempt, incident = training_attempt(connection, run), open_incident(connection, run.run_id)
    situation = None
    if attempt is not None:
        situation = run_situation_of(connection, run, attempt, now)
        pace = _pace(connection, run) if incident is None else read_step_time(connection, incident)
        situation = replace(situation, step_time_s=pace)
    c = targets.c
    here = sql.select(c.name, c.saved_at).where(c.run_id == run.run_id, c.deleted_at.is_(None))
    saved_at = {row.name: row.saved_at for row in connection.execute(here)}
    waiting = None
    if incident is not None:
        asked = commands_of(connection, run.run_id, incident.number)
        waiting = next((one for one in reversed(asked) if one.state in WAITING), None)
    return Options(
        run, attempt, situation, policy, now, saved_at,
        None if incident is None else incident.number,
        None if incident is None else incident.incident.newest_onset_step, waiting,
        row.live_attempts,
    )  # fmt: skip


def _pace(connection: sql.Connection, run: RunRow) -> float | None:
    """By the newest steps of the segment that is trained now."""
    if run.current_attempt is None or run.current_segment is None or run.last_step is None:
        return None
    here = SegmentKey(run.run_id, run.current_attempt, run.current_segment)
    newest = (run.last_step - PACE_STEPS, run.last_step)
    return pace_of(_times(read_curves(connection, here, *newest, [Signal.STEP_TIME])))
