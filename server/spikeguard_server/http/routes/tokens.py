"""Tokens: made, listed without their secrets, revoked. Admins only."""

from __future__ import annotations

from fastapi import APIRouter, Response

from spikeguard_protocol import DEFAULT_PROJECT
from spikeguard_server.access.grants import Grant, issue_token, withdraw_token
from spikeguard_server.access.token_lifetimes import Ceilings
from spikeguard_server.errors import SignInAgain, Unprocessable
from spikeguard_server.http.bodies.access import TokenBody, TokenList, TokenMade, TokenWanted
from spikeguard_server.http.dependencies import (
    CallerDep,
    Cursor,
    Limit,
    Number,
    ReasonAsked,
    Services,
    ServicesDep,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.identity.actors import Actor
from spikeguard_server.identity.permissions import DECIDERS, Caller
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tokens import list_tokens

router = APIRouter(tags=["access"])


def actor(caller: Caller) -> Actor:
    """Who stands behind a change: a person, or the token where it names none."""
    return caller.actor


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
        secret, token = issue_token(connection, grant, actor(caller), wanted.reason, ceilings)
    shown = TokenBody.model_validate(token).model_dump()
    return JsonReply(TokenMade(**shown, token=secret), status_code=201)


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


@router.get(
    "/v1/tokens",
    summary="List tokens",
    response_model=TokenList,
)
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
        withdraw_token(connection, id, caller.project, actor(caller), reason)
    return Response(status_code=204)
