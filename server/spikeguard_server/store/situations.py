"""Gathers the policy's input from the database, and what an order costs: how far a run is, its
pace, its price, its targets, which are the checkpoints and snapshots that agents have reported.

Costs are read at the moment of asking: every step that passes makes a rollback dearer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.lifecycle.command_life import WAITING
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.cost import PACE_STEPS, pace_of
from spikeguard_core.policy.orders import read_limits
from spikeguard_core.policy.settings import Policy
from spikeguard_core.policy.situation import (
    HEALTH_HORIZON_STEPS,
    PastCommand,
    RunSituation,
    Situation,
    Target,
)
from spikeguard_core.policy.targeting import (
    Alarm,
    Doubts,
    alarms_of,
    health_of,
    with_damage,
    worth_keeping,
)
from spikeguard_protocol import (
    RUN_ITSELF,
    Health,
    Medium,
    Rollback,
    SegmentId,
    SegmentPoint,
    Signal,
    TargetSaved,
    Verb,
    abilities_from_settings,
)
from spikeguard_protocol.abilities import mitigations_from_settings
from spikeguard_server.entities import CommandRow, IncidentRow
from spikeguard_server.store.chunks import SegmentKey, read_curves
from spikeguard_server.store.commands import LATELY, commands_about, commands_of
from spikeguard_server.store.curves import Curves
from spikeguard_server.store.engine import Prepared, database_now, row_as
from spikeguard_server.store.incidents import (
    doubtful_incidents,
    open_incident,
    unclaimed_precursors,
)
from spikeguard_server.store.paging import Row
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.runs import (
    LIVE,
    AttemptRow,
    RunRow,
    attempt_settings,
    current_line,
    find_attempt,
    run_row,
    segments_of,
    training_attempt,
)
from spikeguard_server.store.samples import kept_curves
from spikeguard_server.store.tables import core as tables

_T, _A = tables.targets.c, tables.attempts.c
_VERBS = {verb.value for verb in Verb}
NOTED_STEPS = 50  # between a change and the onset that it explains


def situation_of(
    connection: sql.Connection,
    run: RunRow,
    attempt: AttemptRow,
    incident: Incident,
    targets: tuple[Target, ...],
    known: Iterable[CommandRow],
    now: datetime,
) -> Situation:
    """What there is to know before proposing anything about `incident`, with `attempt` live;
    `known`: `commands_about` it.

    The pace is left out: proposals do not depend on it, costs are reckoned when they are read.
    """
    job = _job(connection, run, attempt, targets)
    noted = _noted(connection, run, incident.onset_step)
    past = _past_of(known, now, incident.number)
    return Situation(incident=incident, noted=noted, past=past, **job)


def _noted(connection: sql.Connection, run: RunRow, step: int) -> str | None:
    """The newest change that a person told within `NOTED_STEPS` of `step`, as a sentence."""
    n = tables.notes.c
    near = n.step.between(step - NOTED_STEPS, step + NOTED_STEPS)
    told = sql.select(n.actor, n.step, n.text).where(
        n.run_id == run.run_id, n.source == "person", near
    )
    row = connection.execute(told.order_by(n.number.desc()).limit(1)).one_or_none()
    if row is None:
        return None
    return f"{row.actor} noted a change after step {row.step:,}: {row.text}."


def _past_of(
    commands: Iterable[CommandRow], now: datetime, incident: int | None = None
) -> tuple[PastCommand, ...]:
    """Of `commands_about`, what the policy is told: all of `incident`, of others those of `LATELY`;
    of the run itself none where there is an incident."""
    others = {RUN_ITSELF} if incident is not None else set[int]()
    return tuple(
        _past(row, now)
        for row in commands
        if row.incident == incident
        or (row.incident not in others and row.proposed_at > now - LATELY)
    )


def _past(row: CommandRow, now: datetime) -> PastCommand:
    age = None if row.decided_at is None else max(0.0, (now - row.decided_at).total_seconds())
    return row_as(
        PastCommand, row, auto=row.automatic, decided_s_ago=age, ordered_by=row.proposed_by
    )


def _job(
    connection: sql.Connection, run: RunRow, attempt: AttemptRow, targets: tuple[Target, ...]
) -> dict[str, Any]:
    """Where the job stands, what it can do, and its own limits."""
    settings = attempt_settings(connection, run.run_id, attempt.number)
    return {
        "step": run.last_step or 0,
        "position": run.position,
        "targets": targets,
        "capabilities": frozenset(map(Verb, _VERBS.intersection(attempt.capabilities))),
        "tokens_per_step": attempt.tokens_per_step,
        "limits": read_limits(settings),
        "abilities": abilities_from_settings(settings),
        "mitigations": mitigations_from_settings(settings),
    }


def targets_with_health(
    connection: sql.Connection, run: RunRow, attempt: int
) -> tuple[Target, ...]:
    """What the run descends from and `attempt` could go back to."""
    rows = targets_of(connection, run.run_id, attempt)
    if not rows or run.current_segment is None or run.current_attempt is None:
        return ()
    lineage = current_line(run, segments_of(connection, run.run_id))
    newest, alarms = run.last_step or 0, list[Alarm]()
    for incident in doubtful_incidents(connection, run.run_id):
        alarms += alarms_of(incident)
    # Warnings too young to know that nothing followed.
    since = max(rows[0].step, newest - HEALTH_HORIZON_STEPS)
    for warning in unclaimed_precursors(connection, run.run_id, since):
        alarms.append(Alarm(SegmentId(warning.id, warning.segment), warning.step, warning.step))
    doubts = Doubts(alarms, lineage)
    found = [
        replace(row, health=health_of(point, newest_step=newest, doubts=doubts))
        for row in rows
        if lineage.holds(point := SegmentPoint(row.segment, row.step))
    ]
    return with_damage(found)


def kept_targets(
    connection: sql.Connection,
    run: RunRow,
    targets: Sequence[Target],
    incident: Incident | None,
    unfinished: Iterable[CommandRow],
) -> frozenset[str]:
    """Names of what agents have to keep: what `incident`, a warning or an `unfinished` command may
    want."""
    actions = [command.action for command in unfinished]
    return worth_keeping(
        targets,
        incident=incident,
        warned_step=_warned_step(connection, run) if incident is None else None,
        ordered={action.target for action in actions if isinstance(action, Rollback)},
    )


def _warned_step(connection: sql.Connection, run: RunRow) -> int | None:
    """The first warning of the segment that is trained now that no incident followed yet."""
    since = max(0, (run.last_step or 0) - DetectionSettings().attentive_steps)
    here = (run.current_attempt, run.current_segment)
    warned = unclaimed_precursors(connection, run.run_id, since)
    return min((row.step for row in warned if (row.attempt, row.segment) == here), default=None)


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
        trains=run.state == LIVE and run.current_segment is not None,
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
    run = row_as(RunRow, row)
    policy, now = policy_of(connection, run.project, run.run_id), database_now(connection)
    attempt, incident = training_attempt(connection, run), open_incident(connection, run.run_id)
    situation = None
    if attempt is not None:
        targets = targets_with_health(connection, run, attempt.number)
        pace = _pace(connection, run) if incident is None else read_step_time(connection, incident)
        situation = RunSituation(
            past=_past_of(commands_about(connection, run.run_id, now), now), step_time_s=pace,
            **_job(connection, run, attempt, targets),
        )  # fmt: skip
    here = sql.select(_T.name, _T.saved_at).where(_T.run_id == run.run_id, _T.deleted_at.is_(None))
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


MAX_TARGETS = 1000  # of a run, that are looked at: whoever looks at the run, or a proposal, waits


def save_target(
    connection: sql.Connection, run_id: UUID, attempt: int, saved: TargetSaved, now: datetime
) -> None:
    """The target exists; what had its name before is gone."""
    values = {
        "attempt": attempt, "segment": saved.segment, "step": saved.step,
        "position": saved.position, "medium": saved.medium.value, "saved_at": now,
        "deleted_at": None, "damage": saved.damage,
    }  # fmt: skip
    written = insert(tables.targets).values(run_id=run_id, name=saved.name, **values)
    connection.execute(
        written.on_conflict_do_update(
            index_elements=["run_id", "name"],
            set_=values,
            where=tables.targets.c.attempt <= attempt,
        )
    )


def delete_target(
    connection: sql.Connection, run_id: UUID, attempt: int, name: str, now: datetime
) -> None:
    """The target is gone, unless a newer attempt saved it anew."""
    _delete(connection, run_id, now, _T.name == name, _T.attempt <= attempt)


def targets_of(connection: sql.Connection, run_id: UUID, attempt: int) -> list[Target]:
    """What `attempt` could roll back to, by step, held to be suspect: of all on disk, and of what
    it holds in memory itself, those of the highest steps."""
    return [
        row_as(
            Target, r, segment=SegmentId(r.id, r.segment), medium=Medium(r.medium),
            health=Health.SUSPECT,
        )
        for r in _REACHED.rows(connection, key=run_id, here=attempt)[::-1]
    ]  # fmt: skip


_REACHED = Prepared(
    sql.select(_T.name, _A.id, _T.segment, _T.step, _T.position, _T.medium, _T.damage)
    .join(tables.attempts, (_A.run_id == _T.run_id) & (_A.number == _T.attempt))
    .where(_T.run_id == sql.bindparam("key"), _T.deleted_at.is_(None))
    .where(sql.or_(_T.medium == Medium.DISK.value, _T.attempt == sql.bindparam("here")))
    .order_by(_T.step.desc(), _T.name)
    .limit(MAX_TARGETS)
)


def forget_memory(connection: sql.Connection, run_id: UUID, attempt: int, now: datetime) -> None:
    """The attempt ended, and its memory with it."""
    _delete(connection, run_id, now, _T.attempt == attempt, _T.medium == Medium.MEMORY.value)


def _delete(
    connection: sql.Connection, run_id: UUID, now: datetime, *which: sql.ColumnElement[bool]
) -> None:
    gone = sql.update(tables.targets).where(_T.run_id == run_id, _T.deleted_at.is_(None), *which)
    connection.execute(gone.values(deleted_at=now))
