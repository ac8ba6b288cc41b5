"""The dependencies of every endpoint: the services of this process, and the caller.

Nothing is global. `_authorize` stands before every endpoint and looks up the call in
`identity.permissions.TABLE`; the JSON API knows bearer tokens only, the pages know the cookie only.

What a reverse proxy's headers say, the caller's address and whom it has signed in, counts where an
operator names the proxies. To be believed about an address is not to be believed about a person: a
name counts only on a connection that one of the proxies that sign in opened itself, by the address
of the socket, and one that comes twice counts as none.
"""

from __future__ import annotations

import math
from asyncio import Semaphore
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, Generic, TypeVar

import sqlalchemy as sql
from anyio import CapacityLimiter
from fastapi import Depends, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from spikeguard_protocol import DEFAULT_PROJECT, CommandId, IncidentId, RunId
from spikeguard_protocol.escaping import printable
from spikeguard_server.access.accounts import Account, end_lost_accesses
from spikeguard_server.access.person_names import read_person
from spikeguard_server.errors import Forbidden, NotSignedIn
from spikeguard_server.http.bodies.run_shapes import NameText
from spikeguard_server.http.middleware import PEER, TokenTurns, caller_of
from spikeguard_server.identity.actors import KnownBy
from spikeguard_server.identity.permissions import (
    TABLE,
    AccessRule,
    Caller,
    Scope,
    accesses_of,
    check_access,
    check_scope,
    gives,
    hash_cookie,
    hash_secret,
    read_accesses,
)
from spikeguard_server.ingest.decisions import Way
from spikeguard_server.ingest.detection import Monitors
from spikeguard_server.jobs.ticker import Ticker
from spikeguard_server.metrics import Metrics
from spikeguard_server.settings import Settings, networks_of
from spikeguard_server.store.audit import MAX_REASON
from spikeguard_server.store.paging import MAX_LIMIT, PageWanted
from spikeguard_server.store.tokens import find_caller

if TYPE_CHECKING:  # it reads a library that a server without OIDC does without
    from spikeguard_server.access.oidc import Provider

FLEET_S: Final = 5.0  # how old the numbers of the fleet may be
READY_S: Final = 1.0  # how old the word that the database is there may be
WITHOUT_TURN: Final = frozenset(  # they need no thread, or for a part of their time alone
    {
        *("/healthz", "/readyz", "/login/oidc", "/login/oidc/callback"),
        "/v1/channels/{project}/{channel}/test",
    }
)
LONGEST_HOST: Final = 64  # characters of a caller's address in the record
COOKIE: Final = "spikeguard_session"
DASHBOARD_COOKIE: Final = "spikeguard_dashboard"
PAGES: Final = ("/login", "/logout", "/confirm/", "/incident/", "/act/", "/inbox", "/approve/")


T = TypeVar("T")


class Cached(Generic[T]):
    """A value that is made anew once it is older than `seconds`; one maker at a time."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._lock = seconds, Lock()
        self._made_at = -math.inf
        self._value: T | None = None

    def get(self, make: Callable[[], T]) -> T:
        """The value, not older than it may be."""
        with self._lock:
            if self._value is None or monotonic() - self._made_at > self._seconds:
                self._value, self._made_at = make(), monotonic()
            return self._value


@dataclass(frozen=True, slots=True)
class Services:
    """What this process works with."""

    settings: Settings
    engine: sql.Engine
    metrics: Metrics
    monitors: Monitors
    ticker: Ticker | None  # None where another process drives time
    turns: TokenTurns
    fleet: Cached[bytes] = field(default_factory=lambda: Cached(FLEET_S))
    provider: Provider | None = None  # where people sign in by OIDC, if they do
    drawing: Semaphore = field(default_factory=lambda: Semaphore(1))  # a post-mortem, at a time
    readiness: Cached[bool] = field(default_factory=lambda: Cached(READY_S))
    readiness_thread: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))

    def snapshot(self) -> sql.Connection:
        """A connection whose reads are all of one moment, that of the first: an answer of several
        reads never mixes what was before a commit with what came after it."""
        return self.engine.connect().execution_options(isolation_level="REPEATABLE READ")

    @property
    def silent_after(self) -> timedelta:
        """How long a run may say nothing and still count as live."""
        return timedelta(seconds=self.settings.silent_after_s)

    @property
    def session_s(self) -> float:
        """How long a login lasts."""
        return self.settings.session_hours * 3600

    @property
    def named_only(self) -> bool:
        """Whether a name that was only typed decides nothing."""
        return self.settings.decisions_by == "named"

    @property
    def secure(self) -> bool:
        """Whether people reach this server by https."""
        return self.settings.public_url.startswith("https://")


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(_services)]


def is_page(path: str) -> bool:
    """Whether a person with a browser comes here."""
    return path.startswith(PAGES)


def session_secret(request: Request) -> str | None:
    """The cookie's session token."""
    return request.cookies.get(COOKIE)


def find_by_secret(
    services: Services, secret: str | None, hash_of: Callable[[str], bytes] = hash_secret
) -> Caller | None:
    """Who holds `secret`; None for none or for one that does not work."""
    if not secret or len(secret) > 200:
        return None
    with services.engine.connect() as connection:
        return find_caller(connection, hash_of(secret))


def sign_in(
    services: Services, secret: str | None, hash_of: Callable[[str], bytes] = hash_secret
) -> Caller:
    """Who holds `secret`; raise `NotSignedIn` for none or for one that does not work."""
    caller = find_by_secret(services, secret, hash_of)
    if caller is None:
        raise NotSignedIn(
            "This token is unknown, expired or revoked" if secret else "There is no token",
            "Log in again, or ask an admin for a token"
            if secret
            else "Send `Authorization: Bearer TOKEN`",
        )
    return caller


async def _authorize(request: Request, services: ServicesDep) -> AsyncIterator[Caller | None]:
    """Judge the call, and let it have its turn; None only where it needs no token. Nothing here
    waits for a thread where the call itself needs none: load balancers ask while all are busy."""
    path = request.scope["route"].path
    rule = TABLE[request.method, path]
    holder = b"" if rule.public else caller_of(request.scope) or b""
    async with nullcontext() if path in WITHOUT_TURN else services.turns.of(holder):
        yield None if rule.public else await run_in_threadpool(_judged, request, services, rule)


def _judged(request: Request, services: Services, rule: AccessRule) -> Caller:
    """Who calls; raise `NotSignedIn`, `Forbidden` or `NoPerson` for who may not."""
    if is_page(request.url.path):
        caller = sign_in(services, session_secret(request), hash_cookie)
    else:
        caller = sign_in(services, bearer_secret(request))
    if _lost_access(request, services, caller):
        raise NotSignedIn("Your role was changed where you are signed in", "Open /login")
    check_access(caller, rule, named_only=services.named_only)
    if rule.scope is Scope.FLEET and caller.project is not None:
        raise Forbidden(
            f"This token belongs to project {caller.project}, and this tells of all of them",
            "Use a token without a project",
        )
    if project := request.path_params.get("project"):
        caller.check_project(project)
        if caller.run is not None and (name := request.path_params.get("name")):
            check_scope(caller.project, caller.run, RunId(project, name))
    return caller


def _lost_access(request: Request, services: Services, caller: Caller) -> bool:
    """Whether the proxy that vouched for a session gives its role no longer; if so, end it with
    what was made in it, and /login makes one of the role that it gives."""
    known = signed_in(services.settings, request) if caller.known_by is KnownBy.PROXY else None
    if known is None or known.person != caller.person:
        return False
    if gives(known.accesses, caller.role, caller.project):
        return False
    end_lost_accesses(services.engine, known)
    return True


def visitor_of(services: Services, request: Request) -> Caller | None:
    """Who is signed in in the browser that comes to a page which needs no token; None for nobody,
    and for a role that the proxy in between gives no longer, which ends."""
    caller = find_by_secret(services, session_secret(request), hash_cookie)
    return None if caller is None or _lost_access(request, services, caller) else caller


def bearer_secret(request: Request) -> str | None:
    """The token that a program sends."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


guard = Depends(_authorize, scope="function")  # its turn ends before a slow reader has the answer


CallerDep = Annotated[Caller, guard]  # for every call that needs a token


@dataclass(frozen=True, slots=True)
class Call:
    """A call, and who makes it."""

    services: Services
    request: Request
    caller: Caller  # none only where the call needs no token

    def way(self, by: str = "the API", link: str | None = None) -> Way:
        """How a decision comes, with the address as far as the server can know it."""
        client = self.request.client.host if self.request.client is not None else ""
        return Way(by, printable(client)[:LONGEST_HOST] or "nowhere", link)


async def _call(services: ServicesDep, request: Request, caller: CallerDep) -> Call:
    return Call(services, request, caller)


CallDep = Annotated[Call, Depends(_call)]
Name = Annotated[NameText, Path(description="of the run")]
Project = Annotated[NameText, Path(description="of the run or channel")]
Number = Annotated[int, Path(ge=1, le=2**31 - 1)]


async def _run(project: Project, name: Name) -> RunId:
    return RunId(project, name)


RunDep = Annotated[RunId, Depends(_run)]


async def _incident(run: RunDep, number: Number) -> IncidentId:
    return IncidentId(run, number)


IncidentDep = Annotated[IncidentId, Depends(_incident)]


async def _command(project: Project, name: Name, number: Number, command: Number) -> CommandId:
    return CommandId(IncidentId(RunId(project, name), number), command)


CommandDep = Annotated[CommandId, Depends(_command)]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="items of one page")]
ReasonAsked = Annotated[
    str | None,
    Query(alias="reason", min_length=1, max_length=MAX_REASON, description="why, for the record"),
]
ProjectAsked = Annotated[
    NameText | None, Query(description="left out: every one that the token may see")
]


def project_asked(caller: Caller, project: str | None) -> str | None:
    """The project that a list is about; raise `Forbidden` for one outside the token's scope."""
    if project is None:
        return caller.project
    caller.check_project(project)
    return project


async def _checked_project(caller: CallerDep, project: NameText = DEFAULT_PROJECT) -> str:
    caller.check_project(project)
    return project


OneProject = Annotated[str, Depends(_checked_project)]
Cursor = Annotated[str | None, Query(max_length=400, description="`next_cursor` as it came")]


async def _page(limit: Limit = 100, cursor: Cursor = None) -> PageWanted:
    return PageWanted(limit, cursor)


PageDep = Annotated[PageWanted, Depends(_page)]


def signed_in(settings: Settings, request: Request) -> Account | None:
    """Who was signed in by the proxy; None where nobody was, or by nobody that counts."""
    try:
        peer = ip_address(str(request.scope.get(PEER)))
    except ValueError:  # a socket that has no address
        return None
    if not any(peer in network for network in networks_of(settings.sign_in_proxies)):
        return None
    name = _single(request.headers, settings.sign_in_person_header)
    if not name:
        return None
    person = read_person(name)
    groups = (_single(request.headers, settings.sign_in_groups_header) or "").split(",")
    given = accesses_of([g.strip() for g in groups], read_accesses(settings.sign_in_roles))
    return Account(f"proxy {person}", person, KnownBy.PROXY, given)


def _single(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) != 1:
        return None
    return values[0].encode("latin-1").decode("utf-8", "replace").strip()
