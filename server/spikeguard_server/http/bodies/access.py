"""Bodies about tokens, sessions and the policy."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_core.policy.settings import PolicyScope
from spikeguard_protocol import Role
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.access.person_names import MAX_PERSON
from spikeguard_server.http.bodies.run_shapes import ReasonGiven, Shape

_NAME = f"^{NAME_PATTERN.pattern}$"


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
    project: str | None = Field(default=None, pattern=_NAME, description="null = every project")
    run: str | None = Field(
        default=None,
        pattern=_NAME,
        description="of that project (null: `default`), role agent only; null = every run",
    )
    person: str | None = Field(default=None, min_length=1, max_length=MAX_PERSON)
    name: str | None = Field(default=None, max_length=MAX_PERSON, description="what it is for")
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


class TokenBody(Shape):
    """A token without its secret, which nobody can be told again."""

    id: int
    role: Role
    project: str | None
    run: str | None = Field(description="null = every run of the project")
    person: str | None
    name: str | None
    session: bool = Field(description="made by a login")
    created_at: datetime
    created_by: str
    expires_in_s: float | None
    made_with: int | None = Field(description="the token that it ends with when that is revoked")


class TokenMade(TokenBody):
    """A new token with its secret, shown this once."""

    token: str


class TokenList(Shape):
    """The tokens that work at present, newest first."""

    items: list[TokenBody]
    next_cursor: str | None


class PolicyBody(Shape):
    """The policy in force for a project, or for one run of it; without an author it is the one the
    server comes with."""

    project: str
    run: str | None = Field(description="null: asked for the project itself")
    scope: PolicyScope = Field(description="whose it is: the run's own, or its project's")
    version: int
    created_at: datetime | None
    created_by: str | None
    policy: dict[str, Any]


class PolicyWanted(Shape):
    """A policy to put in force. `version` is the one it replaces: another one is a conflict."""

    project: str = Field(pattern=_NAME)
    version: int | None = Field(default=None, ge=1)
    policy: dict[str, Any]
    reason: ReasonGiven = None


class RunPolicyWanted(Shape):
    """A policy of the run's own. What is left out is what its project's says now. `version` is the
    run's own that it replaces, 0 for none: another one is a conflict."""

    version: int | None = Field(default=None, ge=0)
    policy: dict[str, Any]
    reason: ReasonGiven = None


class SwitchWanted(Shape):
    """Throw or lift the kill switch of a project, for a reason that the record keeps."""

    project: str = Field(pattern=_NAME)
    reason: str = Field(min_length=1, max_length=MAX_REASON)
