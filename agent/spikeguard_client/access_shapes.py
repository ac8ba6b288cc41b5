"""The shapes of what is answered about tokens, sessions and policies.

Law: as in `shapes`: descriptions only, times are RFC 3339 texts in UTC.
"""

from __future__ import annotations

from typing import Any, TypedDict


class Me(TypedDict):
    """Who holds the token."""

    name: str | None
    role: str
    project: str | None
    run: str | None  # of that project; None = every run of it
    expires_in_s: float | None


class Session(TypedDict):
    """A person's token for some hours; the name stands behind every decision."""

    token: str
    name: str
    role: str
    project: str | None
    expires_in_s: float


class SignInLink(TypedDict):
    """A link that signs a browser on the server's machine in, once."""

    link: str
    expires_in_s: float


class AccessToken(TypedDict):
    """A token without its secret."""

    id: int
    role: str
    project: str | None  # None = every project
    run: str | None  # of that project; None = every run of it
    person: str | None
    name: str | None  # what it is for
    session: bool  # made by a login
    created_at: str
    created_by: str
    expires_in_s: float | None  # None = never
    made_with: int | None  # the token that it ends with when that is revoked


class NewToken(AccessToken):
    """A new token with its secret, told this once."""

    token: str


class Policy(TypedDict):
    """The policy in force for a project, or for one run of it."""

    project: str
    run: str | None  # None: asked for the project itself
    scope: str  # whose it is: run, project
    version: int
    created_at: str | None
    created_by: str | None
    policy: dict[str, Any]


class Shadow(TypedDict):
    """A yes that the policy would have given, and how it looks in hindsight."""

    command: str
    verb: str
    at: str
    step: int
    cost_steps: int
    policy_version: int
    decided_by: str | None
    hindsight: str  # open, same, not_needed, missed, otherwise
    saved_steps: int | None  # < 0: it would have cost that many; None: not known


class Scorecard(TypedDict):
    """What verbs in shadow mode would have done, newest first, and what that comes to."""

    project: str
    decisions: int
    by_hindsight: dict[str, int]
    saved_steps: int
    items: list[Shadow]
