"""The pages on an incident: as it stands, and the one that decides on a command of it.

Law: no scripts. GET shows, POST acts. A page looks again by itself while there is something to
follow, and never while somebody may be typing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from spikeguard_protocol import CommandId, IncidentId, IncidentState, Outcome
from spikeguard_server.errors import Forbidden, NotFound, ServiceError, Unprocessable
from spikeguard_server.http.bodies.incident_shapes import IncidentDetail
from spikeguard_server.http.bodies.incidents import incident_detail
from spikeguard_server.http.dependencies import (
    CallerDep,
    Number,
    RunDep,
    Services,
    ServicesDep,
    origin_of,
    person_of,
    session_secret,
)
from spikeguard_server.http.pages import HtmlPage, IncidentView, confirm_page, incident_page
from spikeguard_server.http.pages.pictures import Pictures
from spikeguard_server.http.routes.decisions import Decision, decide
from spikeguard_server.http.routes.pages import page_of
from spikeguard_server.identity.permissions import DECIDERS, Caller, form_key, same_key
from spikeguard_server.ingest.decisions import Way
from spikeguard_server.notify.facts import read_spike
from spikeguard_server.notify.message import brief
from spikeguard_server.notify.picture import picture_of
from spikeguard_server.notify.upkeep import silence_once, silent_for_s
from spikeguard_server.report.facts import IncidentPicture
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.incidents import read_incident
from spikeguard_server.store.reads.notices import read_told
from spikeguard_server.store.reads.runs import read_run

router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
Text = Annotated[str, Form(max_length=2000)]
SNOOZE_S: Final = 900.0
_PICTURES: Final = Pictures()


@router.get("/incident/{project}/{name}/{number}", summary="An incident at a glance")
def show_incident(
    services: ServicesDep, caller: CallerDep, request: Request, run: RunDep, number: Number
) -> Response:
    """What happened, what is proposed, what it and waiting cost, and the curve. It looks again by
    itself until the incident is closed."""
    return _incident(services, caller, request, IncidentId(run, number))


@router.post("/incident/{project}/{name}/{number}", summary="Snooze an incident")
def do_incident(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    run: RunDep,
    number: Number,
    verdict: Text = "",
    key: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Nobody is told of it for 15 minutes; what is proposed waits, and expires as before."""
    incident = IncidentId(run, number)
    try:
        _check_form(request, incident, key)
        if verdict != "snooze":
            raise Unprocessable("Here one can only snooze", "Use the button", field="verdict")
        snooze(services, incident, person_of(caller))
    except ServiceError as refusal:
        return _incident(services, caller, request, incident, refusal)
    return RedirectResponse(request.url.path, status_code=303)


@router.get("/confirm/{project}/{name}/{number}/{command}", summary="The page that decides")
def show_confirm(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    run: RunDep,
    number: Number,
    command: Number,
) -> Response:
    """One command with its incident; looking changes nothing."""
    return _confirm(services, caller, request, CommandId(IncidentId(run, number), command))


@router.post("/confirm/{project}/{name}/{number}/{command}", summary="Approve or reject")
def do_confirm(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    run: RunDep,
    number: Number,
    command: Number,
    verdict: Text = "",
    revision: Annotated[int, Form(ge=0, le=2**31 - 1)] = 0,
    reason: Text = "",
    key: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Acts in the person's name, then shows what became of it."""
    public_id = CommandId(IncidentId(run, number), command)
    try:
        _check_form(request, public_id, key)
        if verdict == "snooze":
            snooze(services, public_id.incident, person_of(caller))
        else:
            way = Way("the page", origin_of(request))
            made = Decision(public_id, verdict, revision, person_of(caller), way, reason)
            decide(services, made)
    except ServiceError as refusal:
        return _confirm(services, caller, request, public_id, refusal)
    return RedirectResponse(request.url.path, status_code=303)


def snooze(services: Services, incident: IncidentId, person: str) -> None:
    """Tell nobody of `incident` for a while; asked again meanwhile, it stays as it is."""
    run = incident.run
    with services.engine.begin() as connection:
        key = existing_run(connection, run)
        read_incident(connection, key, run, incident.number)  # it exists
        silence_once(connection, incident, SNOOZE_S, "snoozed from the page", person)


def _check_form(request: Request, shown: IncidentId | CommandId, key: str) -> None:
    if not same_key(key, _key(request, shown)):
        raise Forbidden("This form is not from this page, or your session is another", "Look again")


def _key(request: Request, shown: IncidentId | CommandId) -> str:
    return form_key(session_secret(request) or "", f"confirm {shown}")


def _incident(
    services: Services,
    caller: Caller,
    request: Request,
    incident: IncidentId,
    refusal: ServiceError | None = None,
) -> Response:
    seen = _see(services, incident)
    key = _key(request, incident) if caller.role in DECIDERS and caller.person else ""
    html = incident_page(page_of(services, caller), seen.view(), key=key, refusal=refusal)
    return HTMLResponse(html, status_code=refusal.status if refusal else 200)


def _confirm(
    services: Services,
    caller: Caller,
    request: Request,
    command: CommandId,
    refusal: ServiceError | None = None,
) -> Response:
    key = _key(request, command)
    return confirmation(services, page_of(services, caller), command, key, refusal)


def confirmation(
    services: Services,
    page: HtmlPage,
    command: CommandId,
    key: str,
    refusal: ServiceError | None = None,
    *,
    revision: int | None = None,
    spent: bool = False,
) -> Response:
    """The page that decides on `command`. `revision` is the one that may be decided on, if not any;
    `spent`: nothing can be decided here any more; a page without a person asks who they are."""
    seen = _see(services, command.incident)
    shown = next((e for e in seen.detail.commands if e.number == command.number), None)
    if shown is None:
        raise NotFound(f"There is no command {command}", "Open it from its incident")
    html = confirm_page(
        page,
        seen.view(),
        shown.model_dump(),
        key=key,
        refusal=refusal,
        outdated=revision is not None and revision != shown.revision,
        spent=spent,
    )
    return HTMLResponse(html, status_code=refusal.status if refusal else 200)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the pages on an incident are made of."""

    detail: IncidentDetail
    lines: Sequence[str]
    picture: IncidentPicture
    halted: bool  # the kill switch stops every approval
    job: str | None  # what to look at where the run's job may have died
    snoozed_s: float | None
    age_s: float | None  # of the run's newest message
    silent: bool  # whether that is too old to rely on

    def view(self) -> IncidentView:
        return IncidentView(
            incident=self.detail.model_dump(),
            lines=self.lines,
            picture=_PICTURES.svg(self.detail.project, self.picture),
            halted=self.halted,
            job=self.job,
            snoozed_s=self.snoozed_s,
            age_s=self.age_s,
            silent=self.silent,
        )


def _see(services: Services, incident: IncidentId) -> _Seen:
    run, settings = incident.run, services.settings
    with services.engine.connect() as connection:
        key = existing_run(connection, run)
        row = read_incident(connection, key, run, incident.number)
        told = read_told(connection, key, settings.history_after_s)
        concerns = row.state != IncidentState.CLOSED or row.outcome == Outcome.RUN_ENDED
        spike, _ = read_spike(connection, row)
        age_s = read_run(connection, key, services.silent_after).age_s
        return _Seen(
            detail=incident_detail(connection, row),
            lines=brief(spike),
            picture=picture_of(connection, row),
            halted=policy_of(connection, run.project, key).halted,
            job=told.job if concerns else None,
            snoozed_s=silent_for_s(connection, incident),
            age_s=age_s,
            silent=age_s is not None and age_s > services.silent_after.total_seconds(),
        )
