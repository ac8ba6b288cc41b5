"""Servers and browsers of a test's own, for settings and people that the shared one has not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sql
import uvicorn

from spikeguard_server.access.grants import start_session
from spikeguard_server.cli.serve import listen, server_config
from spikeguard_server.http.app import create_app
from spikeguard_server.identity.actors import Actor, ActorKind, KnownBy
from spikeguard_server.identity.permissions import hash_cookie, hash_secret
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.tokens import find_caller

SILENT_S = 600.0  # a busy machine may take minutes for a file whose jobs send nothing meanwhile


@contextmanager
def serving(settings: Settings, port: int = 0) -> Iterator[str]:
    """Answers in a thread of its own, without a ticker; yields its address.

    `port` 0: a free one."""
    engine = open_engine(settings)
    app = create_app(settings, engine, ticker=False)
    server = uvicorn.Server(server_config(app))
    with listen("127.0.0.1", port) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(120)
            engine.dispose()


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
        lasts_s = min(LASTS_S, caller.expires_in_s or LASTS_S)
        return start_session(
            connection, caller.role, caller.project, person, lasts_s, parent=caller.token_id,
            signed_in_s=ago_s, browser=browser,
        )[0]  # fmt: skip
