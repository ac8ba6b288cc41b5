"""The pages to log in and out, by a token, a proxy, OIDC or a link. No scripts, no state but the
cookie.

Sign-in by OIDC leads on to the identity provider, and back from it: an answer counts once, in the
browser that began. Where people are sent to follows from settings alone. No thread waits for the
provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from pydantic import BaseModel, Field, StringConstraints

from spikeguard_protocol import Role
from spikeguard_protocol.escaping import printable
from spikeguard_server.access.accounts import open_account_session
from spikeguard_server.access.grants import (
    close_session,
    holder_of_link,
    start_session,
    use_sign_in_link,
)
from spikeguard_server.errors import Forbidden, NotFound, ServiceError
from spikeguard_server.http.dependencies import (
    COOKIE,
    DASHBOARD_COOKIE,
    Call,
    Services,
    ServicesDep,
    find_by_secret,
    session_secret,
    sign_in,
    signed_in,
    visitor_of,
)
from spikeguard_server.http.pages.render import Visitor, answer, style
from spikeguard_server.http.routes.access import check_on_this_machine, log_in
from spikeguard_server.identity.permissions import (
    DECIDERS,
    Access,
    Caller,
    best_access,
    form_key,
    hash_cookie,
    same_key,
)
from spikeguard_server.settings import Settings
from spikeguard_server.store.tokens import find_caller

if TYPE_CHECKING:  # it reads a library that a server without OIDC does without
    from spikeguard_server.access.oidc import Provider

router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
OWN_FORMS: Final = {"Referrer-Policy": "same-origin"}  # else a browser hides their origin from us
Text = Annotated[str, StringConstraints(max_length=2000)]


class PageForm(BaseModel):
    """What a page's form sends: the button that was pressed, what was typed, the page's key."""

    verdict: Text = ""
    reason: Text = ""
    text: Text = ""  # of a comment
    assignee: Text = ""
    name: Text = ""  # of who decides, where no login says it
    project: Text = ""
    revision: int = Field(default=0, ge=0, le=2**31 - 1)  # of the proposal that was shown
    key: Text = ""


Sent = Annotated[PageForm, Form()]


def page_of(services: Services, caller: Caller | None, person: str | None = None) -> Visitor:
    """Who looks, and where the dashboard is; `person`: who decides, where no login says so."""
    known = {"dashboard_url": services.settings.dashboard_url, "signed_in": caller is not None}
    if caller is None:
        return {**known, "person": person, "role": "not signed in" if person else None}
    told = {"project": caller.project, "expires_in_s": caller.expires_in_s}
    return {**known, **told, "person": caller.person, "role": caller.role.value}


def key_of(request: Request, form: str) -> str:
    """What `form` sends back: only the page that was shown to this session can know it."""
    return form_key(session_secret(request) or "", form)


def decider_key(call: Call, form: str) -> str:
    """The same for who may decide; empty for others, to whom no form is shown."""
    may_act = call.caller.role in DECIDERS and call.caller.person is not None
    return key_of(call.request, form) if may_act else ""


def check_key(request: Request, form: str, key: str) -> None:
    """Raise `Forbidden` for a form that no page shown to this session holds."""
    if not same_key(key, key_of(request, form)):
        raise Forbidden("This form is not from this page, or your session is another", "Look again")


def login_form(
    services: Services, request: Request, path: str, refusal: ServiceError | None = None,
    name: str = "",
) -> Response:  # fmt: skip
    """The page to sign in on, with why it did not work if it did not."""
    caller = visitor_of(services, request)
    page = answer(
        "login.html", page_of(services, caller), refusal=refusal, next=path, name=name,
        provider="" if services.provider is None else services.provider.host,
    )  # fmt: skip
    page.headers.update(OWN_FORMS)
    return page


def safe_next(settings: Settings, path: str) -> str:
    """Where to go after the login: a page of ours or the dashboard, else the login page."""
    if path.startswith(("/confirm/", "/incident/", "/act/", "/inbox")) and not set("\\\r\n") & set(
        path
    ):
        return path
    dashboard = settings.dashboard_url
    return path if dashboard and _origin(path) == _origin(dashboard) else "/login"


def _origin(url: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return (parts.scheme, parts.netloc) if parts.scheme in ("http", "https") else None


@router.get("/login", summary="The page to log in")
def show_login(services: ServicesDep, request: Request, next: str = "") -> Response:
    """The form, or who is logged in; whom the reverse proxy has signed in goes on at once."""
    path = safe_next(services.settings, next)
    try:
        account = signed_in(services.settings, request)
        if account is not None:
            caller = find_by_secret(services, session_secret(request), hash_cookie)
            best = best_access(account.accesses)
            here = caller and (caller.person, Access(caller.role, caller.project))
            if best is None or here != (account.person, best):
                secret = open_account_session(services.engine, account, services.session_s)
                return entered(services, secret, path)
    except ServiceError as refusal:
        return login_form(services, request, path, refusal)
    return login_form(services, request, path)


@router.post("/login", summary="Log in from the page")
def do_login(
    services: ServicesDep,
    request: Request,
    token: Annotated[str, Form(max_length=400)] = "",
    name: Annotated[str, Form(max_length=400)] = "",
    next: Annotated[str, Form(max_length=1000)] = "",
) -> Response:
    """Sets the session's cookie and goes on to where the person came from."""
    path = safe_next(services.settings, next)
    try:
        _check_own_page(services, request)
        session = log_in(services, token, name, browser=True)
    except ServiceError as refusal:
        return login_form(services, request, path, refusal, name)
    return entered(services, session.token, path)


def entered(services: Services, secret: str, path: str) -> Response:
    """On to `path`, with the session's cookie and, for the dashboard, one with which it reads."""
    onward, cookies = RedirectResponse(path, status_code=303), {COOKIE: secret}
    session = sign_in(services, secret, hash_cookie)
    lasts_s = session.expires_in_s or 0.0
    if services.settings.dashboard_url:
        with services.engine.begin() as connection:
            cookies[DASHBOARD_COOKIE], _ = start_session(
                connection, Role.VIEWER, session.project, session.actor, lasts_s,
                parent=session.token_id, signed_in_s=session.signed_in_s, name="dashboard",
                how=", for the dashboard",
            )  # fmt: skip
    for name, value in cookies.items():
        onward.set_cookie(
            name, value, max_age=int(lasts_s), httponly=True, samesite="lax",
            secure=services.secure,
        )  # fmt: skip
    return onward


def _check_own_page(services: Services, request: Request) -> None:
    """Raise `Forbidden` for what a page of another site had a browser send: browsers say so. Where
    they tell no more than the origin, it is `null` for any page that hides where it came from; a
    proxy may have put its own host into the request."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        own = site in ("none", "same-origin")
    else:
        ours = (request.headers.get("host", ""), urlsplit(services.settings.public_url).netloc)
        own = origin is None or origin.partition("://")[2] in ours
    if not own:
        raise Forbidden("Another site's page asked for this", "Do it on a page of this server")


_OIDC_COOKIE: Final = "spikeguard_oidc"
ATTEMPT_S: Final = 600  # between the beginning of a sign-in by OIDC and the answer
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
        return await run_in_threadpool(login_form, services, request, path, refusal)
    answer = RedirectResponse(address, status_code=303)
    answer.set_cookie(
        _oidc_cookie(services), cookie, max_age=ATTEMPT_S, path="/", httponly=True,
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
    attempt = provider.attempt(request.cookies.get(_oidc_cookie(services), ""))
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
        secret = await run_in_threadpool(
            open_account_session, services.engine, account, services.session_s,
            project=attempt.project, signed_in_s=ago_s,
        )  # fmt: skip
        answer = await run_in_threadpool(entered, services, secret, path)
    except ServiceError as refusal:
        answer = await run_in_threadpool(login_form, services, request, path, refusal)
    answer.delete_cookie(
        _oidc_cookie(services), path="/", secure=services.secure, httponly=True, samesite="lax"
    )
    return answer


def _provider(services: Services) -> Provider:
    if services.provider is None:
        raise NotFound(
            "Nobody signs in by OIDC here", "Sign in at /login with a token", field="issuer"
        )
    return services.provider


def _oidc_cookie(services: Services) -> str:
    """Where https is, of a name that no other host of the domain can set."""
    return f"__Host-{_OIDC_COOKIE}" if services.secure else _OIDC_COOKIE


Link = Annotated[str, Path(min_length=20, max_length=200)]


@router.get("/login/{link}", summary="The page that a sign-in link leads to")
def show_sign_in(services: ServicesDep, request: Request, link: Link) -> Response:
    """Whom it would sign in; looking spends nothing."""
    check_on_this_machine(request)
    with services.snapshot() as connection:
        holder = holder_of_link(connection, link)
    page = answer(
        "signin.html", page_of(services, None), name=holder.person or "",
        link_s=holder.expires_in_s or 0.0,
    )  # fmt: skip
    page.headers.update(OWN_FORMS)
    return page


@router.post("/login/{link}", summary="Sign in with a link")
def do_sign_in(services: ServicesDep, request: Request, link: Link, next: str = "") -> Response:
    """Spends the link, sets the session's cookie and goes on to where it leads; not at the word of
    another site's page, which could have a browser sign in as whoever made the link."""
    check_on_this_machine(request)
    _check_own_page(services, request)
    with services.engine.begin() as connection:
        secret = use_sign_in_link(connection, link, services.session_s)
    return entered(services, secret, safe_next(services.settings, next))


@router.post("/logout", summary="Log out from the page")
def do_logout(services: ServicesDep, request: Request) -> Response:
    """Ends the session and forgets the cookie; not at the word of another site's page."""
    _check_own_page(services, request)
    if secret := session_secret(request):
        with services.engine.begin() as connection:
            caller = find_caller(connection, hash_cookie(secret))
            if caller is not None and caller.is_session:
                close_session(connection, caller)
    onward = RedirectResponse("/login", status_code=303)
    onward.delete_cookie(COOKIE, path="/")
    onward.delete_cookie(DASHBOARD_COOKIE, path="/")
    return onward


@router.get("/pages/style.css", summary="The style sheet of the pages", include_in_schema=False)
def get_style() -> Response:
    """Public: it holds nothing but colours and sizes."""
    headers = {"Cache-Control": "public, max-age=3600"}
    return PlainTextResponse(style(), media_type="text/css; charset=utf-8", headers=headers)


@router.get("/", summary="Where people begin", include_in_schema=False)
def get_root(request: Request) -> Response:
    """On to the inbox, or to the login."""
    return RedirectResponse("/inbox" if session_secret(request) else "/login", status_code=303)
