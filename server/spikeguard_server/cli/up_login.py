"""The tokens that `spikeguard up` makes for you on its first start, and your login.

Law: secrets lie in files that only you can read, one token each with the least role; the command
line's credentials are a session in your name, as everybody else's. Whoever starts everything may
change everything (the database is theirs), so that session is an admin's; the token for people is
an operator's.
"""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sql

from spikeguard_cli.credentials import Credentials, credentials_path, save_credentials
from spikeguard_cli.own_files import read_own
from spikeguard_protocol import Role
from spikeguard_server.access.grants import (
    Grant,
    make_sign_in_link,
    open_session,
    register_token,
    sign_in_url,
)
from spikeguard_server.cli.private_files import write_private
from spikeguard_server.cli.up_dashboard import address_in_browser
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.identity.permissions import Caller, hash_secret, new_secret, read_secret
from spikeguard_server.settings import Settings
from spikeguard_server.store.tokens import find_caller

MADE_BY = Actor("spikeguard up", ActorKind.COMMAND_LINE)


@dataclass(frozen=True, slots=True)
class UpCredentials:
    """What whoever started us gets."""

    agent_token_file: Path
    login_token_file: Path
    credentials: Path
    name: str
    sign_in_link: str  # for a browser on this machine: once, for ten minutes
    used: bool = True  # by the command line; not where it is logged in at another server


def prepare_login(
    engine: sql.Engine, settings: Settings, directory: Path, name: str | None
) -> UpCredentials:
    """Make what is missing, and log `name` in on the command line."""
    address = f"http://{settings.host}:{settings.port}"  # this machine's, whatever proxy is before
    with engine.begin() as connection:
        _token(connection, directory / "agent_token", Role.AGENT, "training jobs")
        login = _token(connection, directory / "login_token", Role.OPERATOR, "people")
        admin = _token(connection, directory / "admin_token", Role.ADMIN, "whoever runs this")
        name = name or account_name()
        session = _session(connection, admin, settings, name)
        caller = find_caller(connection, hash_secret(login))
        assert caller is not None, "the token was made in this very transaction"
        link = sign_in_url(address_in_browser(address), make_sign_in_link(connection, caller, name))
    path = credentials_path()
    used = save_credentials(Credentials(address, session, name), path, up=str(directory))
    agent, people = directory / "agent_token", directory / "login_token"
    return UpCredentials(agent, people, path, name, link, used)


def account_name() -> str:
    """The name of the account that runs us."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"


def _token(connection: sql.Connection, file: Path, role: Role, use: str) -> str:
    """The secret of `file`, made where it is missing or no longer works."""
    if file.exists():
        secret = read_secret(read_own(file))
        register_token(connection, Grant(role, name=use), secret, MADE_BY)
        if find_caller(connection, hash_secret(secret)) is not None:
            return secret
    secret = new_secret()
    register_token(connection, Grant(role, name=use), secret, MADE_BY)
    write_private(file, secret + "\n")
    return secret


def _session(connection: sql.Connection, secret: str, settings: Settings, name: str) -> str:
    caller: Caller | None = find_caller(connection, hash_secret(secret))
    assert caller is not None, "the token was made in this very transaction"
    session, _ = open_session(connection, caller, name, settings.session_hours * 3600)
    return session
