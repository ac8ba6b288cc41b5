"""Who acted: a person, a token, a policy, an agent, the server itself.

An actor reads as its name wherever a name is wanted, and says beside it what kind it is, with which
token and session it came, and how a person is known. The audit stores all of it. Names that
machines go by cannot be a person's (`person_names.read_person`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class ActorKind(StrEnum):
    """What acted."""

    PERSON = "person"
    TOKEN = "token"  # one that names nobody
    POLICY = "policy"
    AGENT = "agent"
    SERVER = "server"
    COMMAND_LINE = "command_line"  # an account of the server's machine


class KnownBy(StrEnum):
    """How it is known which person acted."""

    TOKEN = "token"  # it was made for them
    PROXY = "proxy"  # the identity provider says so, through a reverse proxy
    OIDC = "oidc"  # the identity provider says so itself
    TYPED = "typed"  # they said so, with a token that names nobody
    LINK = "link"  # they hold a link that was sent to a channel


class Actor(str):
    """A name, with what is known of whoever goes by it."""

    kind: ActorKind
    token_id: int | None  # of the grant behind it, which outlives a session
    session_id: int | None
    known_by: KnownBy | None

    def __new__(
        cls,
        name: str,
        kind: ActorKind,
        *,
        token_id: int | None = None,
        session_id: int | None = None,
        known_by: KnownBy | None = None,
    ) -> Self:
        """`name` as `kind`."""
        actor = super().__new__(cls, name)
        actor.kind, actor.token_id = kind, token_id
        actor.session_id, actor.known_by = session_id, known_by
        return actor
