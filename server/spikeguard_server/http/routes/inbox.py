"""The inbox: what waits for people across runs, for programs and as a page without scripts.

GET shows, POST acts. The page looks again by itself, and never while somebody may be typing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Final

import sqlalchemy as sql
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import Field

from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_protocol import Waits
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_protocol.phrases import order_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.access.grants import throw_switch
from spikeguard_server.access.person_names import same_name
from spikeguard_server.entities import CommandRow, IncidentRow
from spikeguard_server.errors import ServiceError, Unprocessable
from spikeguard_server.http.bodies.incidents import (
    CommandBody,
    IncidentBody,
    command_bodies,
    incident_bodies,
)
from spikeguard_server.http.bodies.run_shapes import Shape
from spikeguard_server.http.dependencies import (
    CallerDep,
    ProjectAsked,
    Services,
    ServicesDep,
    person_of,
    project_asked,
)
from spikeguard_server.http.pages.render import answer
from spikeguard_server.http.responses import BodyRoute
from spikeguard_server.http.routes.pages import Key, Text, check_key, decider_key, page_of
from spikeguard_server.identity.permissions import (
    TABLE,
    Caller,
    check_access,
)
from spikeguard_server.store.commands import failed_commands
from spikeguard_server.store.policies import Switch, read_switches
from spikeguard_server.store.reads.costs import read_pace
from spikeguard_server.store.reads.incidents import (
    incidents_by_key,
    incidents_to_decide,
    incidents_to_look_at,
)

MAX_ITEMS: Final = 200  # of each kind


class InboxItem(Shape):
    """One thing that waits. An incident stands in the inbox once, for what presses most."""

    waits: Waits
    title: str = Field(description="what is asked of somebody, in a line")
    project: str
    since: datetime | None
    by: str | None = Field(default=None, description="who threw the switch, or ordered it")
    reason: str | None = Field(
        default=None, description="of a switch, or of an order of a run itself"
    )
    incident: IncidentBody | None = Field(
        default=None, description="with its proposal, cost and deadline"
    )
    command: CommandBody | None = Field(default=None, description="that came to nothing")


class InboxBody(Shape):
    """Everything that waits for people in the projects that the token may see."""

    person: str | None = Field(description="whose it is; null: the token names nobody")
    items: list[InboxItem]
    more: bool = Field(description="whether there is more of a kind than `limit`")


def inbox_body(
    connection: sql.Connection, person: str | None, project: str | None, limit: int
) -> InboxBody:
    """What waits now for `person` in `project` (None: in every one), so many of each kind."""
    one_more = limit + 1
    deciding = incidents_to_decide(connection, project, one_more)
    failed = failed_commands(connection, project, one_more, of_runs=False)
    not_done = failed_commands(connection, project, one_more, of_runs=True)
    looks = incidents_to_look_at(connection, project, person, one_more)
    switches = [s for s in read_switches(connection, project) if s.halted]
    items = [
        *(_switch_item(switch) for switch in switches[:limit]),
        *_proposals(connection, deciding[:limit]),
        *_failures(connection, [*failed[:limit], *not_done[:limit]]),
    ]
    named = {item.incident.id for item in items if item.incident is not None}
    rest = [row for row in looks[:limit] if str(row.id) not in named]
    items += [_look(body, person) for body in incident_bodies(connection, rest)]
    more = any(len(found) > limit for found in (deciding, failed, not_done, looks, switches))
    return InboxBody(person=person, items=items, more=more)


def _switch_item(switch: Switch) -> InboxItem:
    return InboxItem(
        waits=Waits.SWITCH, project=switch.project, since=switch.at, by=switch.by,
        title=f"The kill switch of project {switch.project} is on: nothing can be approved",
        reason=switch.reason,
    )  # fmt: skip


def _proposals(connection: sql.Connection, rows: Sequence[IncidentRow]) -> Iterator[InboxItem]:
    for incident in incident_bodies(connection, rows):
        proposal = incident.proposal
        if proposal is None:  # decided meanwhile
            continue
        yield InboxItem(
            waits=Waits.DECIDE, project=incident.project, since=proposal.proposed_at,
            title=f"{incident.id}: decide: {_order(proposal)}",
            incident=incident,
        )  # fmt: skip


def _failures(connection: sql.Connection, failed: Sequence[CommandRow]) -> Iterator[InboxItem]:
    found = incidents_by_key(connection, [(one.run_id, one.incident) for one in failed])
    bodies = {body.id: body for body in incident_bodies(connection, list(found.values()))}
    for row in failed:
        incident = found.get((row.run_id, row.incident))
        pace = None if incident is None else read_pace(connection, incident)
        [command] = command_bodies(connection, [row], pace)
        said = f" ({row.result})" if row.id.of_run and row.result else ""
        yield InboxItem(
            waits=Waits.FAILED, project=row.run.project, since=row.finished_at or row.decided_at,
            title=f"{row.id}: {COMMAND_STATE_WORDS[row.state]}: {_order(command)}{said}",
            by=row.proposed_by, reason=row.reason if row.id.of_run else None, command=command,
            incident=None if incident is None else bodies[str(incident.id)],
        )  # fmt: skip


def _look(incident: IncidentBody, person: str | None) -> InboxItem:
    mine = person is not None and same_name(incident.assignee or "", person)
    asks = "yours" if mine else "nobody has it"
    return InboxItem(
        waits=Waits.ASSIGNED if mine else Waits.UNACKNOWLEDGED, project=incident.project,
        title=f"{incident.id}: {asks}: {incident.title}", since=incident.opened_at,
        incident=incident,
    )  # fmt: skip


def _order(command: CommandBody) -> str:
    return order_phrase(command.verb, command.arguments, brief=True)


router = APIRouter(route_class=BodyRoute)
SHOWN = 20  # of each kind, on the page
Limit = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="items of each kind")]


@router.get("/v1/inbox", tags=["incidents"], summary="What waits for people")
def get_inbox(
    services: ServicesDep, caller: CallerDep, project: ProjectAsked = None, limit: Limit = 50
) -> InboxBody:
    """Kill switches that are on; proposals to decide, with price and deadline; commands that came
    to nothing; incidents that are yours, and those that nobody acknowledged."""
    scope = project_asked(caller, project)
    with services.snapshot() as connection:
        return inbox_body(connection, caller.person, scope, limit)


@router.get("/inbox", tags=["pages"], summary="The inbox as a page", response_class=HTMLResponse)
def show_inbox(
    services: ServicesDep, caller: CallerDep, request: Request, write: bool = False
) -> Response:
    """The same with links to the first views, and the kill switch of each project; with `write`,
    which shows the switch's form, it does not look again by itself."""
    return _page(services, caller, request, write=write)


@router.post(
    "/inbox", tags=["pages"], summary="Throw or lift a kill switch", response_class=HTMLResponse
)
def do_inbox(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    verdict: Text = "",
    project: Text = "",
    reason: Text = "",
    key: Key = "",
) -> Response:
    """Whoever may decide throws it, an admin lifts it; the record keeps the reason."""
    try:
        check_key(request, "inbox", key)
        _switch(services, caller, verdict, project, reason.strip())
    except ServiceError as refusal:
        return _page(services, caller, request, write=True, refusal=refusal)
    return RedirectResponse("/inbox", status_code=303)


def _switch(services: Services, caller: Caller, verdict: str, project: str, reason: str) -> None:
    if verdict not in ("halt", "resume"):
        raise Unprocessable("Here one can halt and resume", "Use the buttons", field="verdict")
    check_access(caller, TABLE["POST", f"/v1/policy/{verdict}"], named_only=services.named_only)
    if not NAME_PATTERN.fullmatch(project):
        raise Unprocessable("This is no project's name", "Choose one", field="project")
    caller.check_project(project)
    if not 1 <= len(reason) <= MAX_REASON:
        raise Unprocessable(
            f"The switch needs a reason of 1 to {MAX_REASON} characters",
            "Say why: the record keeps it",
            field="reason",
        )
    by = person_of(caller)
    with services.engine.begin() as connection:
        throw_switch(connection, project, halted=verdict == "halt", reason=reason, by=by)


def _page(
    services: Services,
    caller: Caller,
    request: Request,
    *,
    write: bool,
    refusal: ServiceError | None = None,
) -> Response:
    with services.snapshot() as connection:
        body = inbox_body(connection, caller.person, caller.project, SHOWN)
        switches = read_switches(connection, caller.project)
    return answer(
        "inbox.html", page_of(services, caller), refusal=refusal, inbox=body.model_dump(),
        switches=switches, write=write, key=decider_key(request, caller, "inbox"),
    )  # fmt: skip
