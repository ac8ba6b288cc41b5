"""From rows to the bodies of runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sql

from spikeguard_protocol import SegmentPoint, abilities_from_settings, without_abilities
from spikeguard_protocol.phrases import beginning_of
from spikeguard_server.http.bodies.run_shapes import (
    AttemptBody,
    NoteBody,
    PointRef,
    RunBody,
    RunDetail,
    RunState,
    SegmentBody,
    TargetBody,
)
from spikeguard_server.store.notes import outcome_words, read_notes
from spikeguard_server.store.paging import Row
from spikeguard_server.store.reads.history import (
    MAX_SEGMENTS,
    current_line,
    read_targets,
)
from spikeguard_server.store.reads.runs import job_of, read_attempts, read_warnings, run_id_of
from spikeguard_server.store.runs import RunRow, read_point, segments_of

# Of one setting, or of one sentence of an ability: whoever looks gets 64 of them for 100 attempts.
LONGEST_SETTING: Final = 300  # characters


def run_body(row: Row, silent_after: timedelta) -> RunBody:
    """One run of a list."""
    return RunBody.of(row, **_facts(row, silent_after))


def run_detail(connection: sql.Connection, row: Row, silent_after: timedelta) -> RunDetail:
    """One run with its history."""
    segments = segments_of(connection, row.run_id, newest=MAX_SEGMENTS)
    line = current_line(segments)
    return RunDetail.of(
        row,
        **_facts(row, silent_after),
        attempts=[_attempt(attempt) for attempt in read_attempts(connection, row.run_id)],
        segments=[
            SegmentBody.of(
                one,
                attempt=one.id.attempt,
                number=one.id.number,
                parent=_point(one.parent),
                current=one.id in line.last_steps,
            )
            for one in segments
        ],
        targets=[
            TargetBody.of(
                one, one.row, attempt=one.row.segment.attempt, segment=one.row.segment.number
            )
            for one in read_targets(connection, RunRow.of(row))
        ],
        precursors=read_warnings(connection, row.run_id),
        notes=[note_body(note) for note in read_notes(connection, row.run_id)[0]],
    )


def _facts(row: Row, silent_after: timedelta) -> dict[str, Any]:
    state = _state(row, silent_after)
    return {"id": str(run_id_of(row)), "state": state, "look_at_job": job_of(row, state)}


def _state(row: Row, silent_after: timedelta) -> RunState:
    """Silence is reckoned here: it must show even where no ticker runs."""
    if row.state == "live" and row.age_s > silent_after.total_seconds():
        return "silent"
    state: RunState = row.state
    return state


def _attempt(row: Row) -> AttemptBody:
    settings = {n: beginning_of(told, LONGEST_SETTING) for n, told in row.settings.items()}
    return AttemptBody.of(
        row,
        parent=_point(read_point(row)),
        settings=without_abilities(settings),
        abilities=abilities_from_settings(settings),
    )


def _point(point: SegmentPoint | None) -> PointRef | None:
    if point is None:
        return None
    return PointRef(attempt=point.segment.attempt, segment=point.segment.number, step=point.step)


def note_body(row: Row) -> NoteBody:
    """A note with what became of it in words."""
    return NoteBody.of(
        row,
        author=row.actor,
        attempt=row.attempt_id,
        expect=row.expected,
        expect_size=row.expected_size,
        outcome=outcome_words(row),
    )
