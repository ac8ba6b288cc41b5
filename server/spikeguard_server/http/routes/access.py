"""Sessions and tokens: signed in and out, `GET /v1/me`; made, listed, revoked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from pydantic import Field

from spikeguard_protocol import DEFAULT_PROJECT, Role
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
from spikeguard_server.access.person_names import MAX_PERSON
from spikeguard_server.errors import Forbidden, NotSignedIn, SignInAgain, Unprocessable
from spikeguard_server.http.bodies.run_shapes import ItemList, NameText, ReasonGiven, Shape
from spikeguard_server.http.dependencies import (
    CallDep,
    Number,
    PageDep,
    Services,
    find_by_secret,
)
from spikeguard_server.http.responses import BodyRoute
from spikeguard_server.identity.permissions import DECIDERS, Caller, read_secret
from spikeguard_server.store.tokens import Token, list_tokens


class Login(Shape):
    """A token that an admin gave to a person, and that person's name."""

    token: str = Field(min_length=20, max_length=200)
    name: str = Field(default="", max_length=MAX_PERSON, description="empty if the token names you")


class SignInLinkWanted(Shape):
    """A link for the browser of whoever asks."""

    next: str = Field(default="", max_length=1000, description="where to go once signed in")


class SignInLink(Shape):
    """A link that signs a browser in, once, on the server's own machine."""

    link: str
    expires_in_s: float


class SessionBody(Shape):
    """A person's token, for SPIKEGUARD_SESSION_HOURS; the name stands behind every decision."""

    token: str
    name: str
    role: Role
    project: str | None
    expires_in_s: float


class Me(Shape):
    """Who holds the token that was sent."""

    name: str | None
    role: Role
    project: str | None
    run: str | None = Field(description="null = every run of the project")
    expires_in_s: float | None
    token: int = Field(
        description="number of the token that stands behind it, the same for all its sessions"
    )


class TokenWanted(Shape):
    """What a new token may do, for whom and how long."""

    role: Role
    project: NameText | None = Field(default=None, description="null = every project")
    run: NameText | None = Field(
        default=None,
        description="of that project (null: `default`), role agent only; null = every run",
    )
    person: str | None = Field(default=None, min_length=1, max_length=MAX_PERSON)
    name: str | None = Field(
        default=None, max_length=MAX_PERSON, pattern=r"^[^\x00]*$", description="what it is for"
    )
    unnamed: bool = Field(
        default=False,
        description="of role operator or admin, for nobody in particular: the name is typed",
    )
    expires_in_s: float | None = Field(
        default=None,
        gt=0,
        le=10 * 366 * 86400,
        description="null = as long as it may; agents' SPIKEGUARD_AGENT_TOKEN_DAYS, others' as "
        "long as the maker's own",
    )
    reason: ReasonGiven = None


@dataclass(frozen=True, slots=True)
class TokenMade(Token):
    """A new token with its secret, shown this once."""

    token: str = ""


router = APIRouter(tags=["access"], route_class=BodyRoute)


def log_in(services: Services, token: str, name: str, *, browser: bool = False) -> SessionBody:
    """Exchange an access token for a session; the page and the API do the same."""
    caller = find_by_secret(services, read_secret(token))
    if caller is None:
        raise NotSignedIn(
            "This token is unknown, expired or revoked", "Ask an admin for a new one", field="token"
        )
    with services.engine.begin() as connection:
        lasts_s = services.session_s
        secret, made = open_session(connection, caller, name, lasts_s, browser=browser)
    expires_in_s = made.expires_in_s or 0.0
    return SessionBody.of(made, token=secret, name=made.created_by, expires_in_s=expires_in_s)


@router.post("/v1/sessions", summary="Log in")
def post_session(call: CallDep, login: Login) -> SessionBody:
    """Exchange an access token for a session that carries your name."""
    return log_in(call.services, login.token, login.name)


def check_on_this_machine(request: Request) -> None:
    """Refuse a sign-in link that would travel over a network: from elsewhere, or by a proxy."""
    forwarded = {"forwarded", "x-forwarded-for"} & set(request.headers)
    try:
        here = ip_address(request.client.host if request.client else "").is_loopback
    except ValueError:
        here = False
    if forwarded or not here:
        raise Forbidden(
            "Sign-in links are for browsers on the server's own machine",
            "Sign in at /login with a token",
        )


@router.post("/v1/sessions/links", summary="Make a sign-in link", status_code=201)
def post_link(call: CallDep, wanted: SignInLinkWanted) -> SignInLink:
    """A link that signs your browser in on the server's own machine: once, within 10 minutes."""
    check_on_this_machine(call.request)
    secret = make_sign_in_link(call.connection, call.caller)
    public = call.services.settings.public_url  # of a browser on this machine, where it names it so
    local = (urlsplit(public).hostname or "").endswith("localhost")
    link = sign_in_url(public if local else str(call.request.base_url), secret, wanted.next)
    return SignInLink(link=link, expires_in_s=SIGN_IN_LINK_S)


@router.delete("/v1/sessions/current", summary="Log out", status_code=204)
def delete_session(call: CallDep) -> None:
    """End the session whose token this is."""
    close_session(call.connection, call.caller)


@router.get("/v1/me", summary="Whose token this is")
def get_me(call: CallDep) -> Me:
    """The name, the role and the scope behind the token that was sent."""
    return Me.of(call.caller, name=call.caller.person, token=call.caller.grant)


@router.post("/v1/tokens", summary="Make a token", status_code=201)
def post_token(call: CallDep, wanted: TokenWanted) -> TokenMade:
    """The secret is shown this once. An admin of one project makes tokens of that project. A `run`
    may be named before it exists; only role agent takes one. It ends with the token that stands
    behind the caller at the latest, not with the caller's session; a training job's lasts
    SPIKEGUARD_AGENT_TOKEN_DAYS at most. In a session it needs a sign-in of a moment ago."""
    services, caller = call.services, call.caller
    project = wanted.project if caller.project is None else wanted.project or caller.project
    if project is None and wanted.run is not None:
        project = DEFAULT_PROJECT
    if project is not None:
        caller.check_project(project)
    grant = Grant(wanted.role, project, wanted.person, wanted.name, wanted.expires_in_s, wanted.run)
    _check_wanted(services, caller, wanted)
    secret, token = issue_token(
        call.connection, grant, caller.actor, wanted.reason, caller,
        services.settings.agent_token_days,
    )  # fmt: skip
    return TokenMade(**asdict(token), token=secret)


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


@router.get("/v1/tokens", summary="List tokens")
def get_tokens(call: CallDep, page: PageDep) -> ItemList[Token]:
    """The tokens and sessions that work at present, newest first, without their secrets."""
    found, more = list_tokens(call.connection, call.caller.project, page)
    return ItemList[Token].of(items=found, next_cursor=more)


@router.delete("/v1/tokens/{id}", summary="Revoke a token", status_code=204)
def delete_token(call: CallDep, id: Number, reason: ReasonGiven = None) -> None:
    """From now on neither the token nor what hangs on it works: sessions that it opened, tokens
    that were made with it, and so on."""
    caller = call.caller
    withdraw_token(call.connection, id, caller.project, caller.actor, reason)
