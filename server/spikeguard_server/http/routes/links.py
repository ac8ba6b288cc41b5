"""Approval links: the page that they lead to, and the one decision that each is good for.

GET shows and spends nothing, however often a mail scanner or a chat's preview looks; POST acts, in
a person's name, once.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Path, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from spikeguard_server.access.person_names import BY_LINK, read_typed
from spikeguard_server.errors import NameNotProven, ServiceError, WrongState
from spikeguard_server.http.dependencies import (
    Services,
    ServicesDep,
    origin_of,
    visitor_of,
)
from spikeguard_server.http.pages.render import HtmlPage
from spikeguard_server.http.routes.commands import decide
from spikeguard_server.http.routes.incident_pages import confirmation, snooze
from spikeguard_server.http.routes.pages import Key, Text, check_key, key_of
from spikeguard_server.identity.actors import Actor, ActorKind, KnownBy
from spikeguard_server.identity.permissions import (
    DECIDERS,
    PROVEN,
    Caller,
)
from spikeguard_server.ingest.decisions import Way
from spikeguard_server.store.links import LinkRow, read_link

router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
Token = Annotated[str, Path(min_length=20, max_length=1000)]


@router.get("/approve/{token}", summary="The page that a link leads to")
def show_link(services: ServicesDep, request: Request, token: Token) -> Response:
    """One command with its incident; looking changes nothing and spends nothing."""
    return _page(services, request, _read(services, token))


@router.post("/approve/{token}", summary="Decide with a link")
def decide_by_link(
    services: ServicesDep,
    request: Request,
    token: Token,
    verdict: Text = "",
    name: Annotated[str, Form(max_length=400)] = "",
    reason: Text = "",
    key: Key = "",
) -> Response:
    """Decides on the revision that the link was made for, once, and shows what became of it.

    In the name of who is signed in only by the form that they were shown: another page of this host
    could send one along with their cookie.
    """
    link = _read(services, token)
    try:
        if link.used_at is not None:
            raise WrongState(f"This link was used by {link.used_by}", "It is good once")
        person = _person(services, request, link) or _typed(name)
        if person.known_by is not KnownBy.LINK:
            check_key(request, f"link {link.id}", key)
        if services.named_only and person.known_by not in PROVEN:
            raise NameNotProven
        if verdict == "snooze":  # decides nothing, and spends nothing
            snooze(services, link.command.incident, person)
        else:
            way = Way(f"a link of channel {link.channel}", origin_of(request), link.id)
            decide(services, link.command, verdict, link.revision, person, reason, way)
    except ServiceError as refusal:
        return _page(services, request, link, refusal)
    return RedirectResponse(request.url.path, status_code=303)


def _read(services: Services, token: str) -> LinkRow:
    with services.snapshot() as connection:
        return read_link(connection, token)


def _page(
    services: Services,
    request: Request,
    link: LinkRow,
    refusal: ServiceError | None = None,
) -> Response:
    page = HtmlPage(None, services.settings.dashboard_url, _person(services, request, link))
    return confirmation(
        services, page, link.command, key_of(request, f"link {link.id}"), refusal,
        revision=link.revision, spent=link.used_at is not None,
    )  # fmt: skip


def _person(services: Services, request: Request, link: LinkRow) -> Actor | None:
    """Who decides: who is signed in and may decide here, else the person whose channel it is."""
    caller = visitor_of(services, request)
    if caller is not None and caller.person is not None and _may_decide(caller, link):
        return caller.actor
    return None if link.person is None else unsigned(link.person)


def _typed(name: str) -> Actor:
    return unsigned(read_typed(name))


def unsigned(name: str) -> Actor:
    """A name that no login stands behind."""
    return Actor(f"{name}{BY_LINK}", ActorKind.PERSON, known_by=KnownBy.LINK)


def _may_decide(caller: Caller, link: LinkRow) -> bool:
    return caller.role in DECIDERS and caller.project in (None, link.command.incident.run.project)
