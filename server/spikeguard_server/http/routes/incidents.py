"""Incidents: what was seen, the curves around it, the post-mortem, and who responds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sql
from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool

from spikeguard_protocol import IncidentId, IncidentState, RunId
from spikeguard_server.errors import NotClosed, Unprocessable, Unready
from spikeguard_server.http.bodies.incident_shapes import (
    AssigneeWanted,
    BatchEvidence,
    CommentWanted,
    IncidentDetail,
    IncidentList,
    ResponseBody,
)
from spikeguard_server.http.bodies.incidents import (
    batch_evidence,
    incident_bodies,
    incident_detail,
    trend_body,
)
from spikeguard_server.http.bodies.run_shapes import SeriesBody
from spikeguard_server.http.dependencies import (
    CallerDep,
    Cursor,
    Limit,
    ListOrder,
    Number,
    OrderAsked,
    ProjectAsked,
    RunDep,
    Services,
    ServicesDep,
    person_of,
    project_asked,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.http.routes.runs import Points, Signals, window
from spikeguard_server.ingest.responses import (
    acknowledge,
    assign,
    comment,
    take_back_acknowledgement,
)
from spikeguard_server.jobs.postmortems import draw_postmortem
from spikeguard_server.report.render import MEDIA_TYPES, ReportFormat
from spikeguard_server.store.batches import read_batches
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.incidents import (
    list_incidents,
    list_incidents_by_attention,
)
from spikeguard_server.store.reads.series import read_series
from spikeguard_server.store.responses import read_response

router = APIRouter(tags=["incidents"])


HTML_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
_REPORT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The document.",
        "content": {media: {} for media in ("text/markdown", "text/html", "application/json")},
    },
}


def _states(text: str | None) -> list[IncidentState]:
    try:
        return [IncidentState(word) for word in (text or "").split(",") if word]
    except ValueError:
        raise Unprocessable(
            f"A state is one of {', '.join(IncidentState)}",
            "Write state=open, or several with commas between them",
            field="state",
        ) from None


@router.get("/v1/incidents", summary="List incidents", response_model=IncidentList)
def get_incidents(
    services: ServicesDep,
    caller: CallerDep,
    state: Annotated[
        str | None,
        Query(
            max_length=64,
            description="open, recovering, closed; several with commas between them",
        ),
    ] = None,
    run: Annotated[
        str | None,
        Query(max_length=130, description="`NAME` or `PROJECT/NAME`"),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    project: ProjectAsked = None,
    order: OrderAsked = ListOrder.NEWEST,
) -> JsonReply:
    """Spikes of every run that the token may see, newest first. `order=attention` is one page
    without a cursor: open ones first, the projects in turn."""
    page = PageWanted(limit, cursor)
    asked = RunId.parse(run) if run else None
    if asked is not None:
        caller.check_project(asked.project)
    scope, states, more = project_asked(caller, project), _states(state), None
    with services.snapshot() as connection:
        key = existing_run(connection, asked) if asked else None
        if order is ListOrder.ATTENTION:
            found = list_incidents_by_attention(
                connection, limit, project=scope, run_id=key, states=states
            )
        else:
            found, more = list_incidents(connection, page, project=scope, run_id=key, states=states)
        items = incident_bodies(connection, found)
    return JsonReply(IncidentList(items=items, next_cursor=more))


@router.get(
    "/v1/runs/{project}/{name}/incidents/{number}",
    summary="One incident with its evidence",
    response_model=IncidentDetail,
)
def get_incident(services: ServicesDep, run: RunDep, number: Number) -> JsonReply:
    """What was seen, how it was classified and when, and every command that it led to."""
    with services.snapshot() as connection:
        row = read_incident(connection, existing_run(connection, run), run, number)
        return JsonReply(incident_detail(connection, row))


@router.get(
    "/v1/runs/{project}/{name}/incidents/{number}/series",
    summary="Curves around an incident",
    response_model=SeriesBody,
)
def get_incident_series(
    services: ServicesDep,
    run: RunDep,
    number: Number,
    signals: Signals = "loss,grad_norm,update_norm,lr",
    points: Points = 2000,
) -> JsonReply:
    """From the copy that outlives the run's own samples."""
    wanted = window(signals, None, None, points)
    with services.snapshot() as connection:
        row = read_incident(connection, existing_run(connection, run), run, number)
        series = read_series(connection, row.run_id, wanted, number)
    return JsonReply({**series, "trend": trend_body(row)})


@router.get(
    "/v1/runs/{project}/{name}/incidents/{number}/batch",
    summary="What lay in the batches near an onset",
    response_model=BatchEvidence,
)
def get_incident_batch(services: ServicesDep, run: RunDep, number: Number) -> JsonReply:
    """Document ids, the worst sequence and the tokens beside those of the batches before, of the
    steps within 8 of the onset, on rank 0 and the rank with the highest loss."""
    with services.snapshot() as connection:
        row = read_incident(connection, existing_run(connection, run), run, number)
        found = read_batches(connection, row.run_id, row.place, row.incident.onset_step)
    return JsonReply(batch_evidence(row, found))


@router.get(
    "/v1/runs/{project}/{name}/incidents/{number}/postmortem",
    summary="The post-mortem",
    response_class=Response,
    responses=_REPORT,
)
async def get_postmortem(
    services: ServicesDep, run: RunDep, number: Number,
    format: ReportFormat = ReportFormat.MARKDOWN,
) -> Response:  # fmt: skip
    """Of a closed incident, as Markdown, self-contained HTML or JSON. It is drawn when somebody
    asks for it, which takes a second; one is drawn at a time."""
    settled_at = await run_in_threadpool(_settled_at, services, run, number)
    async with services.drawing:
        body = await run_in_threadpool(
            draw_postmortem, services.engine, run, number, format, settled_at
        )
    name = f"{run.name}-{number}-postmortem.{format.value}"
    headers = {"Content-Disposition": f'inline; filename="{name}"'}
    if format is ReportFormat.HTML:
        headers["Content-Security-Policy"] = HTML_POLICY
    return Response(body, media_type=MEDIA_TYPES[format], headers=headers)


def _settled_at(services: Services, run: RunId, number: int) -> datetime:
    with services.snapshot() as connection:
        row = read_incident(connection, existing_run(connection, run), run, number)
    if row.incident.state is not IncidentState.CLOSED:
        raise NotClosed(f"{IncidentId(run, number)} is still open", "Wait until it closes")
    if row.reported_at is None:
        raise Unready("The post-mortem is being written", "Ask again in a moment")
    return row.reported_at


_INCIDENT = "/v1/runs/{project}/{name}/incidents/{number}"


@router.post(
    _INCIDENT + "/acknowledgement", summary="Acknowledge an incident", response_model=IncidentDetail
)
def post_acknowledgement(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number
) -> JsonReply:
    """The caller looks at it: nothing is escalated, and no message repeats what is known. Of
    several people the first one has it. A new proposal, a result and the end are still told."""
    incident = IncidentId(run, number)
    with services.engine.begin() as connection:
        acknowledge(connection, incident, person_of(caller))
        return _shown(connection, incident)


@router.delete(
    _INCIDENT + "/acknowledgement",
    summary="Take an acknowledgement back",
    response_model=IncidentDetail,
)
def delete_acknowledgement(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number
) -> JsonReply:
    """Escalation goes on where it stood; what is overdue is told at once."""
    incident = IncidentId(run, number)
    with services.engine.begin() as connection:
        take_back_acknowledgement(connection, incident, person_of(caller))
        return _shown(connection, incident)


@router.post(_INCIDENT + "/assignee", summary="Assign an incident", response_model=IncidentDetail)
def post_assignee(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number, wanted: AssigneeWanted
) -> JsonReply:
    """Whose it is from now on, open or closed; it keeps nobody else from deciding."""
    incident = IncidentId(run, number)
    with services.engine.begin() as connection:
        assign(connection, incident, wanted.assignee, person_of(caller))
        return _shown(connection, incident)


@router.post(
    _INCIDENT + "/comments",
    summary="Comment on an incident",
    response_model=ResponseBody,
    status_code=201,
)
def post_comment(
    services: ServicesDep, caller: CallerDep, run: RunDep, number: Number, wanted: CommentWanted
) -> JsonReply:
    """Kept with the incident, and in its post-mortem; of a closed one that is written anew."""
    incident = IncidentId(run, number)
    with services.engine.begin() as connection:
        written = comment(connection, incident, wanted.text, person_of(caller))
        row = read_response(connection, existing_run(connection, run), number, written)
        return JsonReply(ResponseBody.model_validate(row), status_code=201)


def _shown(connection: sql.Connection, incident: IncidentId) -> JsonReply:
    key = existing_run(connection, incident.run)
    row = read_incident(connection, key, incident.run, incident.number)
    return JsonReply(incident_detail(connection, row))
