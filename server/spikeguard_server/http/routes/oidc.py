"""Sign-in by OIDC: on to the identity provider, and back from it.

An answer counts in the browser that began, once, within ten minutes. Where people are sent to
follows from settings alone. No thread waits for the provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse

from spikeguard_protocol.escaping import printable
from spikeguard_server.access.oidc_attempt import (
    CALLBACK,
    LASTS_S,
    Identity,
    SignInAttempt,
    not_believed,
    read_attempt,
)
from spikeguard_server.access.oidc_roles import accesses_of, best_access, read_accesses
from spikeguard_server.access.oidc_sessions import Account, end_lost_accesses, open_oidc_session
from spikeguard_server.access.person_names import read_person
from spikeguard_server.errors import Forbidden, NotFound, ServiceError
from spikeguard_server.http.dependencies import Services, ServicesDep
from spikeguard_server.http.routes.pages import entered, login_form, safe_next
from spikeguard_server.identity.permissions import new_secret, same_key
from spikeguard_server.store.clock import database_now

if TYPE_CHECKING:  # it reads a library that a server without OIDC does without
    from spikeguard_server.access.oidc import Provider

router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
_COOKIE: Final = "spikeguard_oidc"
_DAY_S: Final = 86_400.0
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
    provider = _provider(services)
    path = safe_next(services.settings, next)
    now_s = await run_in_threadpool(_now, services)
    attempt = SignInAttempt(
        new_secret(), new_secret(), new_secret(), int(now_s), path, project, fresh
    )
    try:
        address = await provider.address(attempt)
    except ServiceError as refusal:
        return await run_in_threadpool(_refused, services, request, path, refusal)
    answer = RedirectResponse(address, status_code=303)
    answer.set_cookie(
        _cookie(services), attempt.cookie(), max_age=LASTS_S, path="/", httponly=True,
        samesite="lax", secure=services.secure,
    )  # fmt: skip
    return answer


@router.get(CALLBACK, summary="Back from the identity provider")
async def finish(
    services: ServicesDep,
    request: Request,
    code: Said = "",
    state: Said = "",
    iss: Said = "",
    error: Said = "",
) -> Response:
    """Sets the session's cookie and goes on to where the person came from."""
    provider, now_s = _provider(services), await run_in_threadpool(_now, services)
    attempt = read_attempt(request.cookies.get(_cookie(services), ""), now_s)
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
        identity = await provider.identify(code, iss, attempt, now_s)
        secret, lasts_s = await run_in_threadpool(_open, services, identity, attempt)
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


def _open(services: Services, identity: Identity, attempt: SignInAttempt) -> tuple[str, float]:
    """A session for whom the provider has signed in; raise `Forbidden`."""
    settings = services.settings
    given = read_accesses(settings.oidc_roles)
    accesses = accesses_of(identity.claims.get(settings.oidc_groups_claim), given)
    subject = f"{settings.oidc_issuer} {identity.subject}"
    account = Account(subject, _person(services, identity), identity.signed_in_s)
    with services.engine.begin() as connection:
        end_lost_accesses(connection, account, accesses)
    access = best_access(accesses, attempt.project)
    if access is None:
        where = f" for project {printable(attempt.project)[:60]}" if attempt.project else ""
        raise Forbidden(
            f"You are signed in, and in none of the groups that are let in here{where}",
            "Ask an admin: SPIKEGUARD_OIDC_ROLES names the groups",
        )
    lasts_s, grant_s = settings.session_hours * 3600, settings.oidc_grant_days * _DAY_S
    with services.engine.begin() as connection:
        return open_oidc_session(connection, account, access, lasts_s, grant_s)


def _person(services: Services, identity: Identity) -> str:
    name = services.settings.oidc_person_claim
    told = identity.claims.get(name)
    if not isinstance(told, str) or not told.strip():
        raise not_believed(f"it does not say who you are (claim {name})")
    verified = identity.claims.get("email_verified", True)  # some providers say it in words
    if name == "email" and verified not in (True, "true"):
        raise not_believed("your e-mail address is not verified there")
    return read_person(told)


def _provider(services: Services) -> Provider:
    if services.provider is None:
        raise NotFound(
            "Nobody signs in by OIDC here", "Sign in at /login with a token", field="issuer"
        )
    return services.provider


def _cookie(services: Services) -> str:
    """Where https is, of a name that no other host of the domain can set."""
    return f"__Host-{_COOKIE}" if services.secure else _COOKIE


def _now(services: Services) -> float:
    with services.snapshot() as connection:
        return database_now(connection).timestamp()
