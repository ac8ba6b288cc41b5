"""The inbox: what waits for people across runs, for programs and as a page without scripts.

GET shows, POST acts. The page looks again by itself, and never while somebody may be typing.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.access.grants import throw_switch
from spikeguard_server.errors import Forbidden, ServiceError, Unprocessable
from spikeguard_server.http.bodies.inbox import MAX_ITEMS, InboxBody, inbox_body
from spikeguard_server.http.dependencies import (
    CallerDep,
    ProjectAsked,
    Services,
    ServicesDep,
    person_of,
    project_asked,
    session_secret,
)
from spikeguard_server.http.pages.render import answer
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.http.routes.pages import page_of
from spikeguard_server.identity.permissions import (
    DECIDERS,
    TABLE,
    Caller,
    check_access,
    form_key,
    same_key,
)
from spikeguard_server.store.policies import read_switches

router = APIRouter()
SHOWN = 20  # of each kind, on the page
Limit = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="items of each kind")]
Text = Annotated[str, Form(max_length=2000)]


@router.get(
    "/v1/inbox", tags=["incidents"], summary="What waits for people", response_model=InboxBody
)
def get_inbox(
    services: ServicesDep, caller: CallerDep, project: ProjectAsked = None, limit: Limit = 50
) -> JsonReply:
    """Kill switches that are on; proposals to decide, with price and deadline; commands that came
    to nothing; incidents that are yours, and those that nobody acknowledged."""
    scope = project_asked(caller, project)
    with services.snapshot() as connection:
        return JsonReply(inbox_body(connection, caller.person, scope, limit))


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
    key: Annotated[str, Form(max_length=100)] = "",
) -> Response:
    """Whoever may decide throws it, an admin lifts it; the record keeps the reason."""
    try:
        if not same_key(key, _key(request)):
            raise Forbidden("This form is not from this page, or your session is another", "Look")
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


def _key(request: Request) -> str:
    return form_key(session_secret(request) or "", "inbox")


def _page(
    services: Services,
    caller: Caller,
    request: Request,
    *,
    write: bool,
    refusal: ServiceError | None = None,
) -> Response:
    may_act = caller.role in DECIDERS and caller.person is not None
    with services.snapshot() as connection:
        body = inbox_body(connection, caller.person, caller.project, SHOWN)
        switches = read_switches(connection, caller.project)
    return answer(
        "inbox.html", page_of(services, caller), refusal=refusal, inbox=body.model_dump(),
        switches=switches, write=write, key=_key(request) if may_act else "",
    )  # fmt: skip
