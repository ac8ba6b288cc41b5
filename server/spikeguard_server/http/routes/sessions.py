"""Sign in, sign out, and `GET /v1/me`."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response

from spikeguard_server.access.grants import (
    SIGN_IN_LINK_S,
    close_session,
    make_sign_in_link,
    open_session,
    sign_in_url,
)
from spikeguard_server.errors import Forbidden, NotSignedIn
from spikeguard_server.http.bodies.access import (
    Login,
    Me,
    SessionBody,
    SignInLink,
    SignInLinkWanted,
)
from spikeguard_server.http.dependencies import (
    CallerDep,
    Services,
    ServicesDep,
    find_by_secret,
    on_this_machine,
    person_of,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.identity.permissions import read_secret

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
    return SessionBody(
        token=secret,
        name=made.created_by,
        role=made.role,
        project=made.project,
        expires_in_s=made.expires_in_s or 0.0,
    )


@router.post("/v1/sessions", summary="Log in", response_model=SessionBody)
def post_session(services: ServicesDep, login: Login) -> JsonReply:
    """Exchange an access token for a session that carries your name."""
    return JsonReply(log_in(services, login.token, login.name))


_ELSEWHERE = Forbidden(
    "Sign-in links are for browsers on the server's own machine",
    "Sign in at /login with a token",
)


def check_on_this_machine(request: Request) -> None:
    """Refuse a sign-in link that would travel over a network."""
    if not on_this_machine(request):
        raise _ELSEWHERE


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


@router.get(
    "/v1/me",
    summary="Whose token this is",
    response_model=Me,
)
def get_me(caller: CallerDep) -> JsonReply:
    """The name, the role and the scope behind the token that was sent."""
    return JsonReply(
        Me(
            name=caller.person,
            role=caller.role,
            project=caller.project,
            run=caller.run,
            expires_in_s=caller.expires_in_s,
            token=caller.grant,
        )
    )
