"""The server as one ASGI application: what it is made of, and how errors become answers.

Everything enters through `create_app`; nothing happens at import. Errors are written here and
nowhere else, in one shape; what is nobody's business stays in the log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import sqlalchemy as sql
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from sqlalchemy.exc import DataError, TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from spikeguard_core.lifecycle.command_life import IllegalMove as DomainIllegalMove
from spikeguard_protocol import VERSION, ProtocolError, UnknownVersion
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.errors import (
    Busy,
    InternalError,
    Malformed,
    MethodNotAllowed,
    NotFound,
    NotSignedIn,
    ServiceError,
    TooLarge,
    Unprocessable,
    Unready,
    VersionNotSpoken,
    WrongState,
)
from spikeguard_server.http.dependencies import Services, guard, is_page
from spikeguard_server.http.middleware import RequestMiddleware, TokenTurns
from spikeguard_server.http.openapi import DESCRIPTION, openapi_document
from spikeguard_server.http.pages.render import answer as page_answer
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.http.routes import (
    access,
    act_pages,
    commands,
    health,
    inbox,
    incident_pages,
    incidents,
    messages,
    pages,
    project_settings,
    runs,
)
from spikeguard_server.http.routes.messages import JUDGES, MessageIntake
from spikeguard_server.http.routes.pages import page_of
from spikeguard_server.identity.permissions import TABLE
from spikeguard_server.ingest.detection import Monitors
from spikeguard_server.ingest.message_pool import MessagePool
from spikeguard_server.jobs.ticker import Ticker
from spikeguard_server.metrics import Metrics
from spikeguard_server.notify.notifier import AT_ONCE as CARRIERS_AT_ONCE, Notifier
from spikeguard_server.settings import Settings, networks_of
from spikeguard_server.store.engine import outage_of

if TYPE_CHECKING:
    from spikeguard_server.access.oidc import Provider

_log = logging.getLogger(__name__)
INGEST_WORKERS: Final = 4  # messages of a project that are taken at once
MESSAGES_WAITING: Final = 2000  # beyond it 429
WAIT = "Wait, then send it again"
ROUTERS: Final = (
    *(messages.router, runs.router, runs.audit, inbox.router, incidents.router, commands.router),
    *(project_settings.policies, project_settings.channels, access.router),
    *(pages.router, incident_pages.router, act_pages.router),
    *(health.metrics, health.router),
)
# Connections at once of what is neither a message nor a call of the framework's: the ticker, the
# post-mortems, the notifier with its carriers, the readiness, the tokens.
BESIDE: Final = 4 + CARRIERS_AT_ONCE + JUDGES


def create_app(
    settings: Settings,
    engine: sql.Engine,
    *,
    registry: CollectorRegistry | None = None,
    ticker: bool = True,
) -> FastAPI:
    """The application over `engine`. `ticker=False` leaves what time alone moves to others."""
    metrics = Metrics(registry or CollectorRegistry())
    services = Services(
        settings=settings,
        engine=engine,
        metrics=metrics,
        monitors=Monitors(settings.monitors_kept),
        ticker=Ticker(settings, engine, metrics.count_incident) if ticker else None,
        provider=_provider(settings),
        turns=TokenTurns(max(1, _callers(settings) // 4)),
    )
    metrics.info.labels(version("spikeguard"), settings.public_url.rstrip("/")).set(1)
    notifier = Notifier(settings, engine, metrics.count_notice) if ticker else None
    pool = MessagePool(_workers(settings), MESSAGES_WAITING)
    app = FastAPI(
        title="spikeguard",
        version=version("spikeguard"),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        default_response_class=JsonReply,
        dependencies=[guard],
        lifespan=partial(_run, services, pool, notifier),
    )
    app.state.services = services
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = cache(partial(openapi_document, app))  # type: ignore[method-assign]
    for kind in (HTTPException, RequestValidationError):  # the framework has handlers of its own
        app.add_exception_handler(kind, partial(_answer, services))
    app.state.messages = MessageIntake(services, pool)
    # Whose word on a caller's address counts: this machine's, too, only where it is named.
    believed = networks_of(f"{settings.trusted_proxies},{settings.sign_in_proxies}")
    app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=[str(one) for one in believed])
    app.add_middleware(
        RequestMiddleware, metrics=metrics, settings=settings, refuse=partial(_answer, services)
    )
    return app


def _provider(settings: Settings) -> Provider | None:
    if not settings.oidc_issuer:
        return None
    from spikeguard_server.access.oidc import Provider  # reads OpenSSL, for those who sign in

    return Provider(settings)


@asynccontextmanager
async def _run(
    services: Services, pool: MessagePool, notifier: Notifier | None, _app: FastAPI
) -> AsyncIterator[None]:
    current_default_thread_limiter().total_tokens = _callers(services.settings)
    beside = [one for one in (services.ticker, notifier) if one is not None]
    for one in beside:
        one.start()
    try:
        yield
    finally:
        pool.stop()
        for one in reversed(beside):
            one.stop()


def _workers(settings: Settings) -> int:
    """Threads that take messages of one project, beside the one that is left to all others;
    people's calls always find a connection that these leave."""
    return max(1, min(INGEST_WORKERS, settings.pool_size - 3))


def _callers(settings: Settings) -> int:
    """Other calls at once, beside `BESIDE`: messages always find a connection too."""
    return max(2, settings.pool_size - (_workers(settings) + 1) - BESIDE)


def service_error(error: Exception, connections: int) -> ServiceError:
    """What a client is told of `error`; the pool holds so many `connections` to the database."""
    match error:
        case ServiceError():
            return error
        case UnknownVersion():
            return VersionNotSpoken(
                error.limit, error.remedy, field=error.field, supported=[VERSION]
            )
        case ProtocolError():
            return Unprocessable(f"{error.field} {error.limit}", error.remedy, field=error.field)
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return _refused(error)
        case DomainIllegalMove():
            return WrongState(str(error), "Look at it again: something else happened first")
        case DataError():
            return Unprocessable(
                "A value is outside what can be stored", "Send smaller numbers and plain text"
            )
        case PoolTimeout():
            told = f"All {connections} connections to the database are in use"
            return Busy(told, WAIT, limit=connections)
    if (cause := outage_of(error)) is None:
        return InternalError()
    return Unready(cause.message, cause.remedy, cause=cause.cause)


def _invalid(error: RequestValidationError) -> ServiceError:
    """The first thing that is wrong with the request's fields: which, its limit, what to do."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return Malformed("The body is not JSON", "Send JSON", field="body")
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    field, said = ".".join(place) or "body", first["msg"].removeprefix("Value error, ")
    way = {"missing": "Send it", "extra_forbidden": "Leave it out"}.get(first["type"], "Change it")
    remedy = f"{way}: /openapi.json says what this call takes"
    if NAME_PATTERN.pattern in str(first.get("ctx", {}).get("pattern")):
        said = "this is not a name"
        remedy = "Write 1 to 64 letters, digits, '.', '_' or '-', the first a letter or a digit"
    return Unprocessable(f"{field}: {said[:1].lower()}{said[1:]}", remedy, field=field)


def _refused(error: HTTPException) -> ServiceError:
    """What the framework refuses by itself."""
    if isinstance(error.__cause__, TooLarge):
        return error.__cause__
    if error.status_code == 404:
        return NotFound("There is nothing here", "/openapi.json lists what there is")
    return Malformed("The request cannot be read", "Send it as /openapi.json says")


def _answer(services: Services, request: Request, error: Exception) -> Response:
    """JSON for programs, a page for people; a person without a login is shown the way to it. What
    is our own fault is logged."""
    path = request.url.path
    if isinstance(error, HTTPException) and error.status_code == 405:
        here = request.scope["route"].path
        error = MethodNotAllowed([method for method, known in TABLE if known == here])
    told = service_error(error, services.settings.pool_size)
    if isinstance(told, InternalError):
        _log.error("%s %s failed", request.method, path, exc_info=error)
    if not is_page(path):
        return JsonReply(told.body(), status_code=told.status, headers=told.headers)
    if isinstance(told, NotSignedIn) and request.method == "GET":
        return RedirectResponse(f"/login?next={quote(path)}", status_code=303)
    page = page_answer("refusal.html", page_of(services, None), refusal=told)
    page.headers.update(told.headers)
    return page
