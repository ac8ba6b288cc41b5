"""Sessions and tokens: signed in and out, `GET /v1/me`; made, listed, revoked."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response

from spikeguard_protocol import DEFAULT_PROJECT
from spikeguard_server.access.grants import (
    SIGN_IN_LINK_S,
    Grant,
    close_session,
    issue_token,
    make_sign_in_link,
    open_session,
    sign_in_url,
    withdraw_token,
)
from spikeguard_server.access.token_lifetimes import Ceilings
from spikeguard_server.errors import Forbidden, NotSignedIn, SignInAgain, Unprocessable
from spikeguard_server.http.bodies.access import (
    Login,
    Me,
    SessionBody,
    SignInLink,
    SignInLinkWanted,
    TokenBody,
    TokenList,
    TokenMade,
    TokenWanted,
)
from spikeguard_server.http.dependencies import (
    CallerDep,
    Cursor,
    Limit,
    Number,
    ReasonAsked,
    Services,
    ServicesDep,
    find_by_secret,
    on_this_machine,
    person_of,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.identity.permissions import DECIDERS, Caller, read_secret
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tokens import list_tokens

router = APIRouter(tags=["access"])


def log_in(services: Services, token: str, name: str, *, browser: bool = False) -> SessionBody:
    """Exchange an access token for a session; the page and the API do the same."""
    caller = find_by_secret(services, read_secret(token))
    if caller is None:
        raise NotSignedIn(
            "This token is unknown, expired or revoked", "Ask an admin for a new one", field="token"
        )
    with services.engine.begin() as connection:
        lasts_s = services.settings.session_hours * 3600
        secret, made = open_session(connection, caller, name, lasts_s, browser=browser)
    expires_in_s = made.expires_in_s or 0.0
    return SessionBody.of(made, token=secret, name=made.created_by, expires_in_s=expires_in_s)


@router.post("/v1/sessions", summary="Log in", response_model=SessionBody)
def post_session(services: ServicesDep, login: Login) -> JsonReply:
    """Exchange an access token for a session that carries your name."""
    return JsonReply(log_in(services, login.token, login.name))


def check_on_this_machine(request: Request) -> None:
    """Refuse a sign-in link that would travel over a network."""
    if not on_this_machine(request):
        raise Forbidden(
            "Sign-in links are for browsers on the server's own machine",
            "Sign in at /login with a token",
        )


@router.post(
    "/v1/sessions/links", summary="Make a sign-in link", response_model=SignInLink, status_code=201
)
def post_link(
    services: ServicesDep, caller: CallerDep, request: Request, wanted: SignInLinkWanted
) -> JsonReply:
    """A link that signs your browser in on the server's own machine: once, within 10 minutes."""
    check_on_this_machine(request)
    with services.engine.begin() as connection:
        secret = make_sign_in_link(connection, caller, person_of(caller))
    public = services.settings.public_url  # of a browser on this machine, where it names it so
    local = (urlsplit(public).hostname or "").endswith("localhost")
    link = sign_in_url(public if local else str(request.base_url), secret, wanted.next)
    return JsonReply(SignInLink(link=link, expires_in_s=SIGN_IN_LINK_S), status_code=201)


@router.delete("/v1/sessions/current", summary="Log out", status_code=204)
def delete_session(services: ServicesDep, caller: CallerDep) -> Response:
    """End the session whose token this is."""
    with services.engine.begin() as connection:
        close_session(connection, caller)
    return Response(status_code=204)


@router.get("/v1/me", summary="Whose token this is", response_model=Me)
def get_me(caller: CallerDep) -> JsonReply:
    """The name, the role and the scope behind the token that was sent."""
    return JsonReply(Me.of(caller, name=caller.person, token=caller.grant))


@router.post("/v1/tokens", summary="Make a token", response_model=TokenMade, status_code=201)
def post_token(services: ServicesDep, caller: CallerDep, wanted: TokenWanted) -> JsonReply:
    """The secret is shown this once. An admin of one project makes tokens of that project. A `run`
    may be named before it exists; only role agent takes one. It ends with the token that stands
    behind the caller at the latest, not with the caller's session; a training job's lasts
    SPIKEGUARD_AGENT_TOKEN_DAYS at most. In a session it needs a sign-in of a moment ago."""
    project = wanted.project if caller.project is None else wanted.project or caller.project
    if project is None and wanted.run is not None:
        project = DEFAULT_PROJECT
    if project is not None:
        caller.check_project(project)
    grant = Grant(wanted.role, project, wanted.person, wanted.name, wanted.expires_in_s, wanted.run)
    _check_wanted(services, caller, wanted)
    ceilings = Ceilings(services.settings.agent_token_days, caller.grant, caller.grant_left_s)
    with services.engine.begin() as connection:
        secret, token = issue_token(connection, grant, caller.actor, wanted.reason, ceilings)
    return JsonReply(TokenMade.of(token, token=secret), status_code=201)


def _check_wanted(services: Services, caller: Caller, wanted: TokenWanted) -> None:
    fresh_s = services.settings.fresh_sign_in_s
    if caller.is_session and caller.signed_in_s > fresh_s:
        raise SignInAgain(caller.signed_in_s, fresh_s)
    if wanted.role in DECIDERS and wanted.person is None and not wanted.unnamed:
        raise Unprocessable(
            f"A token of role {wanted.role} is a person's",
            "Name them in `person`, or say `unnamed`: whoever signs in with it types a name",
            field="person",
        )
    if wanted.name is not None and storable(wanted.name) != wanted.name:
        raise Unprocessable(
            "A token's name holds a NUL, which cannot be stored", "Leave it out", field="name"
        )


@router.get("/v1/tokens", summary="List tokens", response_model=TokenList)
def get_tokens(
    services: ServicesDep, caller: CallerDep, limit: Limit = 100, cursor: Cursor = None
) -> JsonReply:
    """The tokens and sessions that work at present, newest first, without their secrets."""
    page = PageWanted(limit, cursor)
    with services.snapshot() as connection:
        found, more = list_tokens(connection, caller.project, page)
    items = [TokenBody.model_validate(token) for token in found]
    return JsonReply(TokenList(items=items, next_cursor=more))


@router.delete("/v1/tokens/{id}", summary="Revoke a token", status_code=204)
def delete_token(
    services: ServicesDep, caller: CallerDep, id: Number, reason: ReasonAsked = None
) -> Response:
    """From now on neither the token nor what hangs on it works: sessions that it opened, tokens
    that were made with it, and so on."""
    with services.engine.begin() as connection:
        withdraw_token(connection, id, caller.project, caller.actor, reason)
    return Response(status_code=204)
