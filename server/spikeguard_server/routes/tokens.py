"""Tokens: made, listed without their secrets, revoked. Admins only."""

from __future__ import annotations

from fastapi import APIRouter, Response

from spikeguard_protocol import DEFAULT_PROJECT
from spikeguard_server.access import Caller
from spikeguard_server.errors import Forbidden, NotFound
from spikeguard_server.grants import Grant, issue_token, withdraw_token
from spikeguard_server.repository.reading import write_cursor
from spikeguard_server.repository.tokens import list_tokens
from spikeguard_server.routes.access_shapes import TokenBody, TokenList, TokenMade, TokenWanted
from spikeguard_server.routes.answers import Answer, refusals
from spikeguard_server.routes.door import (
    CallerDep,
    Cursor,
    Limit,
    Number,
    ReasonAsked,
    ServicesDep,
    page_wanted,
)

router = APIRouter(tags=["access"])


def actor(caller: Caller) -> str:
    """Who stands behind a change: a person, or the token where it names none."""
    return caller.person or f"token {caller.token_id}"


@router.post(
    "/v1/tokens",
    summary="Make a token",
    response_model=TokenMade,
    response_class=Answer,
    status_code=201,
)
def post_token(services: ServicesDep, caller: CallerDep, wanted: TokenWanted) -> Answer:
    """The secret is shown this once. An admin of one project makes tokens of that project. A `run`
    may be named before it exists; only role agent takes one."""
    project = wanted.project if caller.project is None else wanted.project or caller.project
    if project is None and wanted.run is not None:
        project = DEFAULT_PROJECT
    if project is not None:
        caller.check_project(project)
    grant = Grant(wanted.role, project, wanted.person, wanted.name, wanted.expires_in_s, wanted.run)
    with services.engine.begin() as connection:
        secret, token = issue_token(connection, grant, actor(caller), wanted.reason)
    shown = TokenBody.model_validate(token).model_dump()
    return Answer(TokenMade(**shown, token=secret), status_code=201)


@router.get("/v1/tokens", summary="List tokens", response_model=TokenList, response_class=Answer)
def get_tokens(
    services: ServicesDep, caller: CallerDep, limit: Limit = 100, cursor: Cursor = None
) -> Answer:
    """The tokens and sessions that work at present, newest first, without their secrets."""
    page = page_wanted(limit, cursor, int)
    before = page.after[0] if page.after else None
    with services.engine.connect() as connection:
        found = list_tokens(connection, caller.project, limit=limit + 1, before=before)
    more = write_cursor([found[limit - 1].id]) if len(found) > limit else None
    items = [TokenBody.model_validate(token) for token in found[:limit]]
    return Answer(TokenList(items=items, next_cursor=more))


@router.delete(
    "/v1/tokens/{id}",
    summary="Revoke a token",
    status_code=204,
    responses=refusals(
        NotFound("There is no token 4 that works", "`spikeguard token list` shows them"),
        Forbidden("A token of role viewer may not do this", "Use a token of role admin"),
    ),
)
def delete_token(
    services: ServicesDep, caller: CallerDep, id: Number, reason: ReasonAsked = None
) -> Response:
    """From now on neither the token nor any session it opened works."""
    with services.engine.begin() as connection:
        withdraw_token(connection, id, caller.project, actor(caller), reason)
    return Response(status_code=204)
