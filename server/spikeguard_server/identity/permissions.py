"""The table of calls and roles, and the check of a caller against it.

A call that stands in no row of `TABLE` can't be served; the table is the test as well. Tokens are
32 random bytes, known to the server by their SHA-256 alone.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from spikeguard_protocol import Role, RunId
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.errors import Forbidden, NameNotProven, NoPerson, Unprocessable
from spikeguard_server.identity.actors import Actor, ActorKind, KnownBy

PROVEN: Final = frozenset({KnownBy.TOKEN, KnownBy.PROXY, KnownBy.OIDC})
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,200}")

NONE: Final = frozenset[Role]()
ADMINS: Final = frozenset({Role.ADMIN})
DECIDERS: Final = ADMINS | {Role.OPERATOR}
READERS: Final = DECIDERS | {Role.VIEWER}
AGENTS: Final = frozenset({Role.AGENT})
SCRAPERS: Final = frozenset({Role.METRICS})
EVERYONE: Final = frozenset(Role)


class Scope(StrEnum):
    """How a call names the project that a token must be good for."""

    NONE = "none"  # there is none: public, or about the token itself
    PATH = "path"  # judged before the call is entered, of all others by the call itself
    QUERY = "query"
    BODY = "body"
    ITEM = "item"  # that of what is named by its id: of another project there is none
    LIST = "list"  # only what is the token's own is listed
    FLEET = "fleet"  # of all projects: not for a token of one


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Who may make one call."""

    roles: frozenset[Role]
    public: bool = False  # needs no token at all
    person: bool = False  # needs a name behind the token
    scope: Scope = Scope.PATH

    def by(self, scope: Scope) -> AccessRule:
        """The same of another scope."""
        return replace(self, scope=scope)


_PUBLIC: Final = AccessRule(NONE, public=True, scope=Scope.NONE)
_READ: Final = AccessRule(READERS)
_DECIDE: Final = AccessRule(DECIDERS, person=True)
_ADMIN: Final = AccessRule(ADMINS)
_RUN: Final = "/v1/runs/{project}/{name}"
_INCIDENT: Final = _RUN + "/incidents/{number}"
_COMMAND: Final = _INCIDENT + "/commands/{command}"
_CHANNEL: Final = "/v1/channels/{project}/{channel}"
_CONFIRM: Final = "/confirm/{project}/{name}/{number}/{command}"

TABLE: Final[Mapping[tuple[str, str], AccessRule]] = {
    ("GET", "/"): _PUBLIC,
    ("GET", "/healthz"): _PUBLIC,
    ("GET", "/readyz"): _PUBLIC,
    ("GET", "/openapi.json"): _PUBLIC,
    ("GET", "/login"): _PUBLIC,
    ("POST", "/login"): _PUBLIC,
    ("POST", "/logout"): _PUBLIC,
    ("GET", "/login/oidc"): _PUBLIC,  # the identity provider is asked
    ("GET", "/login/oidc/callback"): _PUBLIC,
    ("GET", "/login/{link}"): _PUBLIC,  # the link itself is what is judged
    ("POST", "/login/{link}"): _PUBLIC,
    ("GET", "/pages/style.css"): _PUBLIC,
    ("POST", "/v1/sessions"): _PUBLIC,
    ("POST", "/v1/sessions/links"): AccessRule(READERS, person=True, scope=Scope.NONE),
    ("POST", "/v1/messages"): AccessRule(AGENTS).by(Scope.BODY),
    ("GET", "/v1/me"): AccessRule(EVERYONE).by(Scope.NONE),
    ("DELETE", "/v1/sessions/current"): _READ.by(Scope.NONE),
    ("GET", "/v1/runs"): _READ.by(Scope.LIST),
    ("GET", _RUN): _READ,
    ("DELETE", _RUN): _ADMIN,
    ("GET", _RUN + "/series"): _READ,
    ("GET", _RUN + "/audit"): _READ,
    ("GET", _RUN + "/notes"): _READ,
    ("POST", _RUN + "/notes"): _DECIDE,
    ("GET", _RUN + "/options"): _READ,
    ("GET", _RUN + "/interventions"): _READ,
    ("GET", _RUN + "/commands"): _READ,
    ("POST", _RUN + "/commands"): _DECIDE,
    ("POST", _RUN + "/commands/{command}/reject"): _DECIDE,
    ("GET", _RUN + "/policy"): _READ,
    ("PUT", _RUN + "/policy"): _ADMIN,
    ("DELETE", _RUN + "/policy"): _ADMIN,
    ("GET", "/v1/audit"): _ADMIN.by(Scope.FLEET),  # and of no single project
    ("GET", "/v1/incidents"): _READ.by(Scope.LIST),
    ("GET", "/inbox"): _READ.by(Scope.LIST),
    ("POST", "/inbox"): _DECIDE.by(Scope.BODY),
    ("GET", _INCIDENT): _READ,
    ("GET", _INCIDENT + "/series"): _READ,
    ("GET", _INCIDENT + "/postmortem"): _READ,
    ("POST", _INCIDENT + "/acknowledgement"): _DECIDE,
    ("DELETE", _INCIDENT + "/acknowledgement"): _DECIDE,
    ("POST", _INCIDENT + "/assignee"): _DECIDE,
    ("POST", _INCIDENT + "/comments"): _DECIDE,
    ("POST", _INCIDENT + "/commands"): _DECIDE,
    ("POST", _COMMAND + "/approve"): _DECIDE,
    ("POST", _COMMAND + "/reject"): _DECIDE,
    ("GET", "/approve/{token}"): _PUBLIC,  # the link itself is what is judged
    ("POST", "/approve/{token}"): _PUBLIC,
    ("GET", _CONFIRM): _DECIDE,
    ("POST", _CONFIRM): _DECIDE,
    ("GET", "/incident/{project}/{name}/{number}"): _READ,
    ("GET", "/incident/{project}/{name}/{number}/postmortem"): _READ,
    ("POST", "/incident/{project}/{name}/{number}"): _DECIDE,
    ("GET", "/act/{project}/{name}"): _READ,
    ("POST", "/act/{project}/{name}"): _DECIDE,
    ("GET", "/v1/policy"): _READ.by(Scope.QUERY),
    ("PUT", "/v1/policy"): _ADMIN.by(Scope.BODY),
    ("POST", "/v1/policy/halt"): _DECIDE.by(Scope.BODY),  # whoever may act may stop everything
    ("POST", "/v1/policy/resume"): AccessRule(ADMINS, person=True).by(Scope.BODY),
    ("GET", "/v1/channels"): _READ.by(Scope.QUERY),
    ("PUT", _CHANNEL): _ADMIN,
    ("DELETE", _CHANNEL): _ADMIN,
    ("POST", _CHANNEL + "/test"): _DECIDE,
    ("GET", "/v1/deliveries"): _READ.by(Scope.QUERY),
    ("GET", "/v1/silences"): _READ.by(Scope.QUERY),
    ("POST", "/v1/silences"): _DECIDE.by(Scope.BODY),
    ("DELETE", "/v1/silences/{project}/{number}"): _DECIDE,
    ("POST", "/v1/tokens"): _ADMIN.by(Scope.BODY),
    ("GET", "/v1/tokens"): _ADMIN.by(Scope.LIST),
    ("DELETE", "/v1/tokens/{id}"): _ADMIN.by(Scope.ITEM),
    ("GET", "/metrics"): AccessRule(SCRAPERS).by(Scope.NONE),
    ("GET", "/metrics/fleet"): AccessRule(SCRAPERS).by(Scope.FLEET),
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who holds a token, as the database knows it."""

    token_id: int
    role: Role
    project: str | None  # None = every project
    person: str | None
    expires_in_s: float | None  # None = never
    is_session: bool  # made by a login, so it can't make another
    run: str | None = None  # of that project; None = every run of it
    grant_id: int | None = None  # of a session the token that opened it; None: the token itself
    grant_left_s: float | None = None  # None = never
    known_by: KnownBy | None = None
    signed_in_s: float = 0.0  # how long ago

    @property
    def grant(self) -> int:
        """The token that stands behind the call, however long the session lasts."""
        return self.token_id if self.grant_id is None else self.grant_id

    @property
    def actor(self) -> Actor:
        """Who does what this call does."""
        session = self.token_id if self.is_session else None
        named = self.person or f"token {self.token_id}"
        kind = ActorKind.TOKEN if self.person is None else ActorKind.PERSON
        return Actor(named, kind, token_id=self.grant, session_id=session, known_by=self.known_by)

    def check_project(self, project: str) -> None:
        """Refuse a project outside the token's scope."""
        _check_project(self.project, project)


def check_scope(project: str | None, run: str | None, wanted: RunId) -> None:
    """Refuse a run that a token of `project` and `run` (None: every one) is not good for."""
    _check_project(project, wanted.project)
    if run not in (None, wanted.name):
        raise Forbidden(
            f"This token is good for run {run} of project {project} only",
            f"Ask an admin for a token of run {wanted.name}, or of the whole project",
            field="run",
        )


def _check_project(project: str | None, wanted: str) -> None:
    if project not in (None, wanted):
        raise Forbidden(
            f"This token belongs to project {project}",
            f"Set SPIKEGUARD_PROJECT={project} where a job sends, "
            f"or ask an admin for a token of project {wanted}",
            field="project",
        )


def check_access(caller: Caller, rule: AccessRule, *, named_only: bool = False) -> None:
    """Return if `caller` may make a call of `rule`; raise `Forbidden` or `NoPerson` otherwise.

    `named_only`: a name that was only typed decides nothing.
    """
    if caller.role not in rule.roles:
        roles = " or ".join(sorted(rule.roles))
        raise Forbidden(
            f"A token of role {caller.role} may not do this", f"Use a token of role {roles}"
        )
    if rule.person and caller.person is None:
        raise NoPerson
    if rule.person and named_only and caller.known_by not in PROVEN:
        raise NameNotProven


def new_secret() -> str:
    """A new token: 32 random bytes as text."""
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> bytes:
    """What the database keeps of a token. Fast on purpose: 256 random bits need no stretching."""
    return hashlib.sha256(secret.encode()).digest()


def hash_cookie(secret: str) -> bytes:
    """The same of a browser's session. Another hash than a token's, since a browser sends a cookie
    to every port of a host: whoever gets it there holds no bearer token."""
    return hash_secret(f"browser session {secret}")


def read_secret(text: str) -> str:
    """Return `text` if it can be a token at all; raise `Unprocessable` otherwise."""
    if not _TOKEN.fullmatch(text.strip()):
        raise Unprocessable(
            "A token is 20 to 200 letters, digits, '-' or '_'",
            "Copy the whole token as it was shown",
            field="token",
        )
    return text.strip()


def form_key(session: str, purpose: str) -> str:
    """What a page's form must send back: only a page made for this session can know it."""
    return hmac.new(session.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def same_key(given: str, expected: str) -> bool:
    """Whether two keys agree, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(), expected.encode())


# Which group of an identity provider gives which role, in all projects or in one.

PEOPLE: Final = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)  # each may what the one before may


@dataclass(frozen=True, slots=True)
class Access:
    """What a session may do."""

    role: Role
    project: str | None = None  # None: every one


def read_accesses(text: str) -> tuple[tuple[str, Access], ...]:
    """Group and access, pair by pair, of `ml-oncall=operator, vision=operator@vision, *=viewer`;
    raise `ValueError` for what is none."""
    return tuple(_pair(part.strip()) for part in text.split(",") if part.strip())


def _pair(text: str) -> tuple[str, Access]:
    group, _, given = text.rpartition("=")
    word, at, project = given.strip().partition("@")
    role = next((role for role in PEOPLE if role.value == word), None)
    if not group.strip() or role is None or (at and not NAME_PATTERN.fullmatch(project)):
        raise ValueError(f"Got {text!r:.60}")
    return group.strip(), Access(role, project or None)


def accesses_of(groups: Any, given: Collection[tuple[str, Access]]) -> frozenset[Access]:
    """What somebody in `groups`, a list or one word, may do; `*` is everybody."""
    words = groups if isinstance(groups, list) else [groups]
    mine = {word for word in words if isinstance(word, str)} | {"*"}
    return frozenset(access for group, access in given if group in mine)


def gives(accesses: Collection[Access], role: Role, project: str | None) -> bool:
    """Whether they give the role, or more than it, there."""
    return any(
        access.project in (None, project) and PEOPLE.index(access.role) >= PEOPLE.index(role)
        for access in accesses
    )


def best_access(accesses: Collection[Access], project: str = "") -> Access | None:
    """The one of `accesses` that a session gets; with `project` the best one for that. None: none
    reaches there."""
    fitting = [a for a in accesses if not project or a.project in (None, project)]
    if not fitting:
        return None
    best = max(fitting, key=lambda a: (PEOPLE.index(a.role), a.project is None, a.project or ""))
    return Access(best.role, project) if project else best
