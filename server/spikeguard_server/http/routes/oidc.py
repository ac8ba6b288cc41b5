"""Sign-in by OIDC: on to the identity provider, and back from it.

An answer counts once, in the browser that began. Where people are sent to follows from settings
alone. No thread waits for the provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse

from spikeguard_protocol.escaping import printable
from spikeguard_server.access.accounts import open_account_session
from spikeguard_server.errors import Forbidden, NotFound, ServiceError
from spikeguard_server.http.dependencies import Services, ServicesDep
from spikeguard_server.http.routes.pages import entered, login_form, safe_next
from spikeguard_server.identity.permissions import same_key

if TYPE_CHECKING:  # it reads a library that a server without OIDC does without
    from spikeguard_server.access.oidc import Provider

router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
_COOKIE: Final = "spikeguard_oidc"
LASTS_S: Final = 600  # between the beginning and the answer
Said = Annotated[str, Query(max_length=4000)]


@router.get("/login/oidc", summary="Sign in at the identity provider")
async def begin(
    services: ServicesDep,
    request: Request,
    next: Annotated[str, Query(max_length=1000)] = "",
    project: Annotated[str, Query(max_length=200)] = "",
    fresh: bool = False,
) -> Response:
    """On to the provider. `fresh`: it asks the person anew, which making admin tokens needs;
    `project`: the session is for that one, where the person's groups give several."""
    provider, path = _provider(services), safe_next(services.settings, next)
    try:
        address, cookie = await provider.begin(path, project, fresh)
    except ServiceError as refusal:
        return await run_in_threadpool(_refused, services, request, path, refusal)
    answer = RedirectResponse(address, status_code=303)
    answer.set_cookie(
        _cookie(services), cookie, max_age=LASTS_S, path="/", httponly=True,
        samesite="lax", secure=services.secure,
    )  # fmt: skip
    return answer


@router.get("/login/oidc/callback", summary="Back from the identity provider")
async def finish(
    services: ServicesDep,
    request: Request,
    code: Said = "",
    state: Said = "",
    error: Said = "",
) -> Response:
    """Sets the session's cookie and goes on to where the person came from."""
    provider = _provider(services)
    attempt = provider.attempt(request.cookies.get(_cookie(services), ""))
    path = "/login" if attempt is None else safe_next(services.settings, attempt.next_path)
    try:
        if attempt is None or not same_key(state, attempt.state):
            raise Forbidden(
                "This sign-in was not begun in this browser, or longer ago than 10 minutes",
                "Sign in again",
            )
        if error or not code:
            raise Forbidden(
                f"The identity provider did not sign you in ({printable(error)[:60] or 'no code'})",
                "Sign in again, or with an access token",
            )
        account, ago_s = await provider.identify(code, attempt)
        secret, lasts_s = await run_in_threadpool(
            open_account_session, services.engine, account, services.session_s,
            project=attempt.project, signed_in_s=ago_s,
        )  # fmt: skip
    except ServiceError as refusal:
        answer = await run_in_threadpool(_refused, services, request, path, refusal)
    else:
        answer = entered(services, secret, lasts_s, path)
    answer.delete_cookie(
        _cookie(services), path="/", secure=services.secure, httponly=True, samesite="lax"
    )
    return answer


def _refused(services: Services, request: Request, path: str, refusal: ServiceError) -> Response:
    return login_form(services, request, next_path=path, refusal=refusal)


def _provider(services: Services) -> Provider:
    if services.provider is None:
        raise NotFound(
            "Nobody signs in by OIDC here", "Sign in at /login with a token", field="issuer"
        )
    return services.provider


def _cookie(services: Services) -> str:
    """Where https is, of a name that no other host of the domain can set."""
    return f"__Host-{_COOKIE}" if services.secure else _COOKIE
