"""Runs: listed, one with its curves, notes and interventions; deleted; their record."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from uuid import UUID

import sqlalchemy as sql
from fastapi import APIRouter, Query
from pydantic import Field

from spikeguard_protocol import (
    IncidentId,
    Kind,
    RunId,
    SegmentPoint,
    abilities_from_settings,
    without_abilities,
)
from spikeguard_protocol.identity import MAX_STEP, TAG_PATTERN
from spikeguard_protocol.phrases import beginning_of
from spikeguard_server.errors import Unprocessable
from spikeguard_server.http.bodies.incidents import InterventionBody, intervention_body, trend_body
from spikeguard_server.http.bodies.run_shapes import (
    AttemptBody,
    AuditEntry,
    ItemList,
    NoteBody,
    NoteWanted,
    PointRef,
    Reason,
    RunBody,
    RunDetail,
    RunList,
    RunState,
    SegmentBody,
    SeriesBody,
    Shape,
    TargetBody,
)
from spikeguard_server.http.dependencies import (
    CallDep,
    PageDep,
    ProjectAsked,
    RunDep,
    project_asked,
)
from spikeguard_server.http.responses import BodyRoute
from spikeguard_server.ingest.responses import tell_note
from spikeguard_server.store.deleted_runs import delete_run
from spikeguard_server.store.engine import row_as
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.notes import outcome_words, read_notes
from spikeguard_server.store.paging import PageWanted, Row
from spikeguard_server.store.reads.runs import (
    MAX_SEGMENTS,
    RunSort,
    count_runs,
    job_of,
    list_runs,
    read_attempts,
    read_audit,
    read_interventions,
    read_run,
    read_targets,
    read_warnings,
    recorded_run,
    runs_wanted,
)
from spikeguard_server.store.reads.series import (
    MAX_POINTS,
    Window,
    read_series,
    read_signals,
    refuse_unknown,
)
from spikeguard_server.store.runs import RunRow, current_line, read_point, run_named, segments_of
from spikeguard_server.store.tables.core import FLEET

# Of one setting, or of one sentence of an ability: whoever looks gets 64 of them for 100 attempts.
LONGEST_SETTING: Final = 300  # characters


def run_detail(connection: sql.Connection, row: Row) -> RunDetail:
    """One run with its history."""
    segments = segments_of(connection, row.run_id, newest=MAX_SEGMENTS)
    run = row_as(RunRow, row)
    line = current_line(run, segments)
    return RunDetail.of(
        row,
        **_facts(row),
        attempts=[_attempt(attempt) for attempt in read_attempts(connection, row.run_id)],
        segments=[
            SegmentBody.of(
                one.id, one, parent=_point(one.parent), current=one.id in line.last_steps
            )
            for one in segments
        ],
        targets=[
            TargetBody.of(one, one.row, one.row.segment, segment=one.row.segment.number)
            for one in read_targets(connection, run)
        ],
        precursors=read_warnings(connection, row.run_id),
        notes=[note_body(note) for note in read_notes(connection, row.run_id)[0]],
    )


def _facts(row: Row) -> dict[str, Any]:
    state, run = row.shown_state, RunId(row.project, row.name)
    return {"id": str(run), "state": state, "look_at_job": job_of(row, state)}


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


router = APIRouter(tags=["runs"], route_class=BodyRoute)
Signals = Annotated[
    str,
    Query(
        max_length=1100,
        description="names of signals, with commas between them",
    ),
]
Points = Annotated[
    int,
    Query(
        ge=2,
        le=MAX_POINTS,
        description="rows to thin longer curves to; extremes and values not finite are kept",
    ),
]
Step = Annotated[
    int | None,
    Query(ge=0, le=MAX_STEP, description="an optimizer step, itself included; left out: no limit"),
]


def window(signals: str, first: int | None, last: int | None, points: int) -> Window:
    """Which curves are asked for; raise `Unprocessable` for a window that ends before it begins."""
    last = MAX_STEP if last is None else last
    if last < (first or 0):
        raise Unprocessable(
            "The last step lies before the first", "Ask for first <= last", field="last"
        )
    return Window(read_signals(signals), first or 0, last, points)


@router.get("/v1/runs/{project}/{name}", summary="One run with its history")
def get_run(call: CallDep, run: RunDep) -> RunDetail:
    """Its attempts, its tree of segments, and what it can return to."""
    row = read_run(
        call.connection, run_named(call.connection, run).run_id, call.services.silent_after
    )
    return run_detail(call.connection, row)


@router.get(
    "/v1/runs/{project}/{name}/series", summary="Curves of a run", response_model=SeriesBody
)
def get_series(
    call: CallDep,
    run: RunDep,
    signals: Signals = "loss",
    first: Step = None,
    last: Step = None,
    points: Points = 2000,
) -> dict[str, Any]:
    """Steps `first` to `last` of every segment, the line that is trained now first."""
    wanted = window(signals, first, last, points)
    row = run_named(call.connection, run)
    refuse_unknown(wanted, row)
    series, trend = read_series(call.connection, row.run_id, wanted), None
    if row.open_incident is not None:
        trend = trend_body(read_incident(call.connection, IncidentId(run, row.open_incident)))
    return {**series, "trend": trend}


@router.delete("/v1/runs/{project}/{name}", summary="Delete a run", status_code=204)
def delete(call: CallDep, run: RunDep, reason: Reason) -> None:
    """Its incidents, commands and post-mortems are removed for good, and within ten minutes its
    samples; its audit stays. Refused while an attempt of it lives. A run of the same name that
    begins later numbers its attempts and incidents on from there."""
    delete_run(call.connection, run, call.caller.actor, reason, call.services.silent_after)


Tag = Annotated[str, Field(pattern=f"^{TAG_PATTERN.pattern}$")]


class RunsAsked(Shape, PageWanted):
    """Which runs are listed, and how."""

    project: ProjectAsked = None
    state: RunState | None = None
    search: str = Field(
        default="",
        max_length=100,
        pattern=r"^[^\x00-\x1f]*$",
        description="stands somewhere in PROJECT/NAME, whatever the case",
    )
    tag: list[Tag] = Field(default=[], max_length=5, description="has all of these")
    open_kind: Literal["any"] | Kind | None = Field(
        default=None, description="of the open incident; `any`: whatever it is"
    )
    sort: RunSort | None = Field(
        default=None, description="left out: newest first; not measured comes last"
    )
    descending: bool = Field(default=True, description="with `sort`")
    count: bool = Field(default=False, description="tell how many match")


@router.get("/v1/runs", summary="List runs")
def get_runs(call: CallDep, asked: Annotated[RunsAsked, Query()]) -> RunList:
    """The runs that the token may see, newest first, or as `sort` says."""
    project, silent_after = project_asked(call.caller, asked.project), call.services.silent_after
    wanted = runs_wanted(
        silent_after, project=project, state=asked.state, search=asked.search, tags=asked.tag,
        open_kind=asked.open_kind,
    )  # fmt: skip
    by, descending = asked.sort or RunSort.CREATED, asked.descending or asked.sort is None
    found, more = list_runs(call.connection, wanted, asked, silent_after, by, descending)
    total = count_runs(call.connection, wanted) if asked.count else None
    items = [RunBody.of(row, **_facts(row)) for row in found]
    return RunList(items=items, next_cursor=more, total=total)


_NOTES = "/v1/runs/{project}/{name}/notes"


@router.get(_NOTES, summary="Changes that nobody ordered here")
def get_notes(call: CallDep, run: RunDep, page: PageDep) -> ItemList[NoteBody]:
    """What people told of, and settings that an attempt began with otherwise, each with its effect
    on the loss once it is judged. Newest first."""
    found, more = read_notes(call.connection, run_named(call.connection, run).run_id, page)
    return ItemList(items=[note_body(row) for row in found], next_cursor=more)


@router.post(_NOTES, summary="Tell of a change", status_code=201)
def post_note(call: CallDep, run: RunDep, wanted: NoteWanted) -> NoteBody:
    """A new data mix, a config edit. Its effect on the loss is judged 40 to 200 steps later,
    against the trend from before it."""
    tell_note(
        call.connection, run, call.caller.actor, wanted.text, step=wanted.step,
        reason=wanted.reason, expected=wanted.expect, expected_size=wanted.expect_size,
    )  # fmt: skip
    key = run_named(call.connection, run).run_id
    (row,), _ = read_notes(call.connection, key, PageWanted(limit=1))
    return note_body(row)


@router.get("/v1/runs/{project}/{name}/interventions", summary="What was done to a run")
def get_interventions(call: CallDep, run: RunDep, page: PageDep) -> ItemList[InterventionBody]:
    """Who, when, at which step, why, what was expected of the loss, and what came, measured
    against its earlier trend. Newest first."""
    key = run_named(call.connection, run).run_id
    found, more = read_interventions(call.connection, key, page)
    items = [intervention_body(one, run) for one in found]
    return ItemList(items=items, next_cursor=more)


audit = APIRouter(tags=["audit"], route_class=BodyRoute)


@audit.get("/v1/runs/{project}/{name}/audit", summary="What happened to a run")
def get_run_audit(call: CallDep, run: RunDep, page: PageDep) -> ItemList[AuditEntry]:
    """Every change of state: who, what, when, why; also of a run that was deleted. Newest first."""
    return _entries(call.connection, recorded_run(call.connection, run), page)


@audit.get("/v1/audit", summary="What happened beside the runs")
def get_audit(call: CallDep, page: PageDep) -> ItemList[AuditEntry]:
    """Tokens, sessions, policies of projects, channels, silences, and what retention dropped: who,
    what, when, why. Newest first."""
    return _entries(call.connection, FLEET, page)


def _entries(connection: sql.Connection, key: UUID, page: PageWanted) -> ItemList[AuditEntry]:
    found, more = read_audit(connection, key, page)
    return ItemList[AuditEntry].of(items=found, next_cursor=more)
