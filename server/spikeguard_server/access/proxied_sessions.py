"""Sessions of people whom a reverse proxy has signed in."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sql

from spikeguard_protocol import Role
from spikeguard_server.access.grants import (
    Grant,
    OpenedSession,
    issue_token,
    start_session,
    withdraw_token,
)
from spikeguard_server.access.person_names import read_person
from spikeguard_server.identity.actors import Actor, ActorKind, KnownBy
from spikeguard_server.store.audit import SERVER
from spikeguard_server.store.tables.core import tokens
from spikeguard_server.store.tokens import token_named, tokens_where

BY_PROXY = "sign-in by the reverse proxy"  # the name of the tokens that such sessions hang on


def open_proxied_session(
    connection: sql.Connection, person: str, role: Role, lasts_s: float
) -> str:
    """A session for whom a reverse proxy has signed in; its secret.

    All of a person's hang on one token a role that nobody holds: revoking it ends them, and what
    was made with it.
    """
    person = read_person(person)
    parent = token_named(connection, BY_PROXY, role, person)
    if parent is None:
        parent = issue_token(connection, Grant(role, person=person, name=BY_PROXY), SERVER)[1].id
    by = Actor(person, ActorKind.PERSON, token_id=parent, known_by=KnownBy.PROXY)
    return start_session(
        connection,
        role,
        None,
        by,
        lasts_s,
        OpenedSession(parent, parent, how=", by the proxy", browser=True),
    )[0]


def end_proxied_roles(
    connection: sql.Connection, person: str, over: Callable[[Role], bool]
) -> None:
    """Revoke what hangs on roles of `person` that the reverse proxy gives no longer."""
    c = tokens.c
    for token in tokens_where(connection, c.name == BY_PROXY, c.person == person):
        if not token.session and over(token.role):
            reason = f"the reverse proxy no longer gives this person the role {token.role}"
            withdraw_token(connection, token.id, None, SERVER, reason)
