"""The tokens that `spikeguard up` makes for you on its first start, and your login.

Secrets lie in files that only you can read, one token each with the least role; the command line's
credentials are a session in your name, as everybody else's. Whoever starts everything may change
everything (the database is theirs), so that session is an admin's; the token for people is an
operator's.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sql

from spikeguard_cli.credentials import Credentials, credentials_path, save_credentials
from spikeguard_cli.own_files import read_own, write_own
from spikeguard_protocol import Role
from spikeguard_server.access.grants import (
    Grant,
    issue_token,
    make_sign_in_link,
    open_session,
    sign_in_url,
)
from spikeguard_server.cli.access_commands import account_name
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.identity.permissions import Caller, hash_secret, new_secret, read_secret
from spikeguard_server.settings import Settings
from spikeguard_server.store.tokens import find_caller

MADE_BY = Actor("spikeguard up", ActorKind.COMMAND_LINE)


def prepare_login(
    engine: sql.Engine, settings: Settings, directory: Path, name: str | None, in_browser: str
) -> dict[str, str]:
    """Make what is missing, and log `name` in on the command line; what whoever started us gets.

    `in_browser` is the server's address there; the link signs a browser in once, for ten minutes.
    """
    agent, people = directory / "agent_token", directory / "login_token"
    name = name or account_name()
    with engine.begin() as connection:
        _holder(connection, agent, Role.AGENT, "training jobs")
        holder = _holder(connection, people, Role.OPERATOR, "people")
        admin = _holder(connection, directory / "admin_token", Role.ADMIN, "whoever runs this")
        session, _ = open_session(connection, admin, name, settings.session_hours * 3600)
        link = sign_in_url(in_browser, make_sign_in_link(connection, holder, name))
    path = credentials_path()
    address = f"http://{settings.host}:{settings.port}"  # this machine's, whatever proxy is before
    used = save_credentials(Credentials(address, session, name), path, up=str(directory))
    return {
        "agent_token_file": str(agent),
        "login_token_file": str(people),
        "credentials": str(path),
        "sign_in_link": link,
        "name": name,
        # Where the command line is logged in at another server, this one has to be named.
        "first_command": f"{'' if used else f'SPIKEGUARD_SERVER={address} '}spikeguard runs",
    }


def kept_secret(file: Path) -> str:
    """What `file` holds, without its line end; a new secret, from then on, if it is not there.

    Raise `OSError` where it cannot be read: a secret that is there is never replaced.
    """
    if not file.exists():
        write_own(file, new_secret() + "\n")
    return read_own(file).strip()


def _holder(connection: sql.Connection, file: Path, role: Role, use: str) -> Caller:
    """Who the token of `file` speaks for; it is made where it is missing or no longer works."""
    while True:
        secret = read_secret(kept_secret(file))
        issue_token(connection, Grant(role, name=use), MADE_BY, secret=secret)
        if (caller := find_caller(connection, hash_secret(secret))) is not None:
            return caller
        file.unlink()
