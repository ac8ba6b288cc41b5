"""Whoever holds a token as a browser that is signed in, and the other way round."""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_server.access.grants import OpenedSession, start_session
from spikeguard_server.identity.actors import Actor, ActorKind, KnownBy
from spikeguard_server.identity.permissions import hash_cookie, hash_secret
from spikeguard_server.store.tokens import find_caller

LASTS_S = 12 * 3600.0


def cookie_of(engine: sql.Engine, token: str, name: str = "Ada") -> str:
    """The cookie of a browser in which the holder of `token` signed in; `name`: where it has none.
    A token that does not work is its own cookie, which does not work either."""
    return _other(engine, hash_secret(token), name, browser=True) or token


def bearer_of(engine: sql.Engine, cookie: str) -> str:
    """A token of the API with the rights and the freshness of a browser's session, or the cookie
    itself, which is none, where the session has ended."""
    return _other(engine, hash_cookie(cookie), "Ada", browser=False) or cookie


def _other(engine: sql.Engine, hashed: bytes, name: str, *, browser: bool) -> str | None:
    with engine.begin() as connection:
        caller = find_caller(connection, hashed)
        if caller is None:
            return None
        person = Actor(
            caller.person or name, ActorKind.PERSON, token_id=caller.grant,
            known_by=caller.known_by or KnownBy.TYPED,
        )  # fmt: skip
        ago_s = caller.signed_in_s if caller.is_session else 0.0
        opened = OpenedSession(caller.token_id, caller.grant, ago_s, browser=browser)
        lasts_s = min(LASTS_S, caller.expires_in_s or LASTS_S)
        return start_session(connection, caller.role, caller.project, person, lasts_s, opened)[0]
