"""Incidents: what was seen, the curves around it, the post-mortem, and who responds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sql
from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from spikeguard_protocol import IncidentId, IncidentState, RunId
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_protocol.paths import incident_page_path
from spikeguard_server.access.person_names import LONGEST
from spikeguard_server.entities import ResponseRow
from spikeguard_server.errors import NotClosed
from spikeguard_server.http.bodies.incidents import (
    IncidentBody,
    IncidentDetail,
    incident_bodies,
    incident_detail,
    trend_body,
)
from spikeguard_server.http.bodies.run_shapes import ItemList, SeriesBody, Shape, Told
from spikeguard_server.http.dependencies import (
    CallDep,
    IncidentDep,
    ProjectAsked,
    Services,
    ServicesDep,
    project_asked,
)
from spikeguard_server.http.responses import BodyRoute
from spikeguard_server.http.routes.runs import Points, Signals, window
from spikeguard_server.ingest.responses import (
    acknowledge,
    assign,
    comment,
    take_back_acknowledgement,
)
from spikeguard_server.jobs.postmortems import draw_postmortem
from spikeguard_server.report.render import MEDIA_TYPES, ReportFormat
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.incidents import list_incidents
from spikeguard_server.store.reads.series import read_series
from spikeguard_server.store.runs import run_named

_NAME = NAME_PATTERN.pattern


class AssigneeWanted(Shape):
    """Whose an incident is to be."""

    assignee: str | None = Field(
        min_length=1, max_length=LONGEST, description="a person's name; null: nobody's"
    )


class CommentWanted(Shape):
    """What a person says of an incident."""

    text: Told = Field(description="what was found, done or is to be done")


class IncidentsAsked(Shape, PageWanted):
    """Which incidents are listed."""

    state: list[IncidentState] = Field([], description="these alone; left out: all")
    run: str | None = Field(None, pattern=f"^({_NAME}/)?{_NAME}$", description="`[PROJECT/]NAME`")
    project: ProjectAsked = None


router = APIRouter(tags=["incidents"], route_class=BodyRoute)
_INCIDENT = "/v1/runs/{project}/{name}/incidents/{number}"
HTML_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
_REPORT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The document.",
        "content": {media: {} for media in MEDIA_TYPES.values()},
    },
}


@router.get("/v1/incidents", summary="List incidents")
def get_incidents(
    call: CallDep, asked: Annotated[IncidentsAsked, Query()]
) -> ItemList[IncidentBody]:
    """Spikes of every run that the token may see, newest first."""
    run = RunId.parse(asked.run) if asked.run else None
    if run is not None:
        call.caller.check_project(run.project)
    scope = project_asked(call.caller, asked.project)
    key = run_named(call.connection, run).run_id if run else None
    found, more = list_incidents(
        call.connection, asked, project=scope, run_id=key, states=asked.state
    )
    items = incident_bodies(call.connection, found)
    return ItemList(items=items, next_cursor=more)


@router.get(_INCIDENT, summary="One incident with its evidence")
def get_incident(call: CallDep, incident: IncidentDep) -> IncidentDetail:
    """What was seen, how it was classified and when, and every command that it led to."""
    return _shown(call.connection, incident)


@router.get(_INCIDENT + "/series", summary="Curves around an incident", response_model=SeriesBody)
def get_incident_series(
    call: CallDep,
    incident: IncidentDep,
    signals: Signals = "loss,grad_norm,update_norm,lr",
    points: Points = 2000,
) -> dict[str, Any]:
    """From the copy that outlives the run's own samples."""
    wanted = window(signals, None, None, points)
    row = read_incident(call.connection, incident)
    series = read_series(call.connection, row.run_id, wanted, row.number)
    return {**series, "trend": trend_body(row)}


@router.get(
    _INCIDENT + "/postmortem",
    summary="The post-mortem",
    response_class=Response,
    responses=_REPORT,
)
async def get_postmortem(
    services: ServicesDep, incident: IncidentDep,
    format: ReportFormat = ReportFormat.MARKDOWN,
) -> Response:  # fmt: skip
    """Of a closed incident, as Markdown, self-contained HTML or JSON. It is drawn when somebody
    first asks for it, which takes a second; one is drawn at a time."""
    at = await run_in_threadpool(_reported_at, services, incident)
    home = services.settings.public_url.rstrip("/") + incident_page_path(incident)
    async with services.drawing:
        body = await run_in_threadpool(
            draw_postmortem, services.engine, incident.run, incident.number, format, at, home
        )
    name = f"{incident.run.name}-{incident.number}-postmortem.{format.value}"
    headers = {"Content-Disposition": f'inline; filename="{name}"'}
    if format is ReportFormat.HTML:
        headers["Content-Security-Policy"] = HTML_POLICY
    return Response(body, media_type=MEDIA_TYPES[format], headers=headers)


def _reported_at(services: Services, incident: IncidentId) -> datetime:
    with services.snapshot() as connection:
        row = read_incident(connection, incident)
    if row.reported_at is None:
        raise NotClosed(f"{incident} is still open", "Wait until it closes")
    return row.reported_at


@router.post(_INCIDENT + "/acknowledgement", summary="Acknowledge an incident")
def post_acknowledgement(call: CallDep, incident: IncidentDep) -> IncidentDetail:
    """The caller looks at it: nothing is escalated, and no message repeats what is known. Of
    several people the first one has it. A new proposal, a result and the end are still told."""
    acknowledge(call.connection, incident, call.caller.actor)
    return _shown(call.connection, incident)


@router.delete(_INCIDENT + "/acknowledgement", summary="Take an acknowledgement back")
def delete_acknowledgement(call: CallDep, incident: IncidentDep) -> IncidentDetail:
    """Escalation goes on where it stood; what is overdue is told at once."""
    take_back_acknowledgement(call.connection, incident, call.caller.actor)
    return _shown(call.connection, incident)


@router.post(_INCIDENT + "/assignee", summary="Assign an incident")
def post_assignee(call: CallDep, incident: IncidentDep, wanted: AssigneeWanted) -> IncidentDetail:
    """Whose it is from now on, open or closed; it keeps nobody else from deciding."""
    assign(call.connection, incident, wanted.assignee, call.caller.actor)
    return _shown(call.connection, incident)


@router.post(_INCIDENT + "/comments", summary="Comment on an incident", status_code=201)
def post_comment(call: CallDep, incident: IncidentDep, wanted: CommentWanted) -> ResponseRow:
    """Kept with the incident, and in its post-mortem; of a closed one that is written anew."""
    return comment(call.connection, incident, wanted.text, call.caller.actor)


def _shown(connection: sql.Connection, incident: IncidentId) -> IncidentDetail:
    return incident_detail(connection, read_incident(connection, incident))
