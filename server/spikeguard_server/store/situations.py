"""Gathers the policy's input from the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sql

from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.orders import read_limits
from spikeguard_core.policy.situation import PastCommand, RunSituation, Situation, Target
from spikeguard_core.policy.targeting import (
    HEALTH_HORIZON_STEPS,
    Alarm,
    Doubts,
    alarms_of,
    health_of,
    with_damage,
    worth_keeping,
)
from spikeguard_protocol import (
    RUN_ITSELF,
    Rollback,
    SegmentId,
    SegmentPoint,
    Verb,
    abilities_from_settings,
)
from spikeguard_protocol.abilities import mitigations_from_settings
from spikeguard_server.entities import CommandRow
from spikeguard_server.store.commands import LATELY, commands_about
from spikeguard_server.store.incidents import doubtful_incidents, unclaimed_precursors
from spikeguard_server.store.runs import (
    AttemptRow,
    RunRow,
    attempt_settings,
    current_line,
    segments_of,
)
from spikeguard_server.store.tables.core import notes
from spikeguard_server.store.targets import targets_of

_VERBS = {verb.value for verb in Verb}
NOTED_STEPS = 50  # between a change and the onset that it explains


def situation_of(
    connection: sql.Connection,
    run: RunRow,
    attempt: AttemptRow,
    incident: Incident,
    *,
    targets: tuple[Target, ...],
    past: tuple[PastCommand, ...],
) -> Situation:
    """What there is to know before proposing anything about `incident`, with `attempt` live.

    The pace is left out: proposals do not depend on it, costs are reckoned when they are read.
    """
    job = _job(connection, run, attempt, targets)
    noted = _noted(connection, run, incident.onset_step)
    return Situation(incident=incident, noted=noted, past=past, **job)


def _noted(connection: sql.Connection, run: RunRow, step: int) -> str | None:
    """The newest change that a person told within `NOTED_STEPS` of `step`, as a sentence."""
    n = notes.c
    near = n.step.between(step - NOTED_STEPS, step + NOTED_STEPS)
    told = sql.select(n.actor, n.step, n.text).where(
        n.run_id == run.run_id, n.source == "person", near
    )
    row = connection.execute(told.order_by(n.number.desc()).limit(1)).one_or_none()
    if row is None:
        return None
    return f"{row.actor} noted a change after step {row.step:,}: {row.text}."


def run_situation_of(
    connection: sql.Connection, run: RunRow, attempt: AttemptRow, now: datetime
) -> RunSituation:
    """What there is to know before a person orders anything of the run, with `attempt` live."""
    targets = targets_with_health(connection, run, attempt.number)
    past = past_of(commands_about(connection, run.run_id, now), now)
    return RunSituation(past=past, **_job(connection, run, attempt, targets))


def past_of(
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
    return PastCommand(
        action=row.action,
        state=row.state,
        incident=row.incident,
        auto=row.automatic,
        applied_step=row.applied_step,
        decided_step=row.decided_step,
        decided_s_ago=age,
        cause=row.cause,
        ordered_by=row.proposed_by,
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
    alarms = _alarms(connection, run, rows)
    doubts, newest = Doubts(alarms, lineage), run.last_step or 0
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


def _alarms(connection: sql.Connection, run: RunRow, rows: Sequence[Target]) -> list[Alarm]:
    """Incidents that are not forgiven, and warnings too young to know that nothing followed."""
    alarms = list[Alarm]()
    for incident in doubtful_incidents(connection, run.run_id):
        alarms += alarms_of(incident)
    since = max(rows[0].step, (run.last_step or 0) - HEALTH_HORIZON_STEPS)
    for row in unclaimed_precursors(connection, run.run_id, since):
        alarms.append(Alarm(SegmentId(row.id, row.segment), row.step, row.step))
    return alarms
