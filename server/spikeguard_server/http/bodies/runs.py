"""From rows to the bodies of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sql

from spikeguard_protocol import SegmentPoint, abilities_from_settings, without_abilities
from spikeguard_protocol.phrases import beginning_of
from spikeguard_server.http.bodies.notes import note_body
from spikeguard_server.http.bodies.run_shapes import (
    AbilityBody,
    AttemptBody,
    PointRef,
    RunBody,
    RunDetail,
    RunState,
    SegmentBody,
    TargetBody,
    WarningBody,
)
from spikeguard_server.store.notes import read_notes
from spikeguard_server.store.paging import Row
from spikeguard_server.store.reads.history import (
    MAX_SEGMENTS,
    ShownTarget,
    current_line,
    read_targets,
)
from spikeguard_server.store.reads.runs import job_of, read_attempts, read_warnings, run_id_of
from spikeguard_server.store.runs import RunRow, SegmentRow, read_point, segments_of

# Of one setting, or of one sentence of an ability: whoever looks gets 64 of them for 100 attempts.
LONGEST_SETTING: Final = 300  # characters
_MEASURED = (
    "project", "name", "created_at", "last_message_at", "age_s", "last_step", "last_loss",
    "last_grad_norm", "tokens_per_second", "open_incident", "incidents", "waiting_approval",
    "live_attempts", "open_kind", "tags",
)  # fmt: skip
_ATTEMPT = (
    "id", "number", "started_at", "last_message_at", "ended_at", "end_reason", "world_size",
    "agent_version", "tokens_per_step", "capabilities", "links", "dropped_samples",
)  # fmt: skip
_WARNED = ("attempt", "segment", "step", "signal", "value", "z", "at")


def run_body(row: Row, silent_after: timedelta) -> RunBody:
    """One run of a list."""
    return RunBody(**_facts(row, silent_after))


def run_detail(connection: sql.Connection, row: Row, silent_after: timedelta) -> RunDetail:
    """One run with its history."""
    segments = segments_of(connection, row.run_id, newest=MAX_SEGMENTS)
    line = current_line(segments)
    attempts = read_attempts(connection, row.run_id)
    return RunDetail(
        **_facts(row, silent_after),
        attempts=[_attempt(attempt) for attempt in attempts],
        segments=[_segment(entry, entry.id in line.last_steps) for entry in segments],
        targets=[_target(target) for target in read_targets(connection, RunRow.of(row))],
        precursors=[_warning(warned) for warned in read_warnings(connection, row.run_id)],
        notes=[note_body(note) for note in read_notes(connection, row.run_id)[0]],
    )


def _facts(row: Row, silent_after: timedelta) -> dict[str, Any]:
    state = _state(row, silent_after)
    told = {"id": str(run_id_of(row)), "state": state, "look_at_job": job_of(row, state)}
    return {**_pick(row, _MEASURED), **told}


def _state(row: Row, silent_after: timedelta) -> RunState:
    """Silence is reckoned here: it must show even where no ticker runs."""
    if row.state == "live" and row.age_s > silent_after.total_seconds():
        return "silent"
    state: RunState = row.state
    return state


def _attempt(row: Row) -> AttemptBody:
    settings = {n: beginning_of(told, LONGEST_SETTING) for n, told in row.settings.items()}
    return AttemptBody(
        **_pick(row, _ATTEMPT),
        parent=_point(read_point(row)),
        settings=without_abilities(settings),
        abilities=[AbilityBody(**asdict(each)) for each in abilities_from_settings(settings)],
    )


def _segment(entry: SegmentRow, current: bool) -> SegmentBody:
    return SegmentBody(
        attempt=entry.id.attempt,
        number=entry.id.number,
        reason=entry.reason,
        parent=_point(entry.parent),
        first_step=entry.first_step,
        last_step=entry.last_step,
        position=entry.position,
        current=current,
    )


def _target(target: ShownTarget) -> TargetBody:
    row = target.row
    return TargetBody(
        name=row.name,
        attempt=row.segment.attempt,
        segment=row.segment.number,
        step=row.step,
        position=row.position,
        medium=row.medium,
        health=row.health,
        damage=row.damage,
        protected=target.protected,
    )


def _warning(row: Row) -> WarningBody:
    return WarningBody(**_pick(row, _WARNED))


def _point(point: SegmentPoint | None) -> PointRef | None:
    if point is None:
        return None
    return PointRef(attempt=point.segment.attempt, segment=point.segment.number, step=point.step)


def _pick(row: Row, names: Sequence[str]) -> Mapping[str, Any]:
    return {name: row._mapping[name] for name in names}
