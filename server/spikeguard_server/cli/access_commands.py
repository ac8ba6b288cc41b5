"""`spikeguard token` on the database itself, beside the server.

Law: a secret goes to standard output alone, so that it can be piped; words about it go to standard
error. Everything done here stands in the audit under the name of the account that did it.
"""

from __future__ import annotations

import getpass
import json
from argparse import Namespace
from dataclasses import asdict
from typing import Any

import sqlalchemy as sql

from spikeguard_cli.access_commands import (
    DAY_S,
    MAX_DAYS,
    TOKEN_HEAD,
    asked_person,
    expiry_words,
    print_secret,
    revoked_words,
    scope_of,
    token_row,
    token_words,
)
from spikeguard_cli.command import CommandFailed, say
from spikeguard_cli.options import most, print_json, told
from spikeguard_cli.wording import table
from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_server.access.grants import (
    Grant,
    issue_token,
    register_token,
    withdraw_token,
)
from spikeguard_server.access.token_lifetimes import Ceilings
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.identity.permissions import read_secret
from spikeguard_server.store.database import database_settings, opened
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.tokens import Token, expiring_agents, list_tokens


def operator_name() -> Actor:
    """Who stands behind what is done on this machine."""
    try:
        name = f"{getpass.getuser()} on the command line"
    except (KeyError, OSError):
        name = "the command line"
    return Actor(name, ActorKind.COMMAND_LINE)


def run_token(options: Namespace) -> int:
    """One of create, register, list, revoke."""
    _check_reason(options)
    with opened(database_settings(options.directory)) as engine, engine.begin() as connection:
        return _TOKEN_WORDS[options.word](connection, options)


def _check_reason(options: Namespace) -> None:
    reason = getattr(options, "reason", None)
    if reason is not None and not 1 <= len(reason) <= MAX_REASON:
        raise CommandFailed(
            f"--reason takes 1 to {MAX_REASON} characters, this one has {len(reason)}: shorten it"
        )


def _grant(options: Namespace) -> Grant:
    project, run = scope_of(options.project, options.run)
    days = options.expires_in
    if days is not None and not 0 < days <= MAX_DAYS:
        raise CommandFailed(f"--expires-in takes days, more than 0 and at most {MAX_DAYS}")
    lasts_s = None if days is None else days * DAY_S
    person = options.person or asked_person(options)
    return Grant(options.role, project, person, options.name, lasts_s, run)


def _create(connection: sql.Connection, options: Namespace) -> int:
    secret, token = issue_token(
        connection, _grant(options), operator_name(), options.reason, _ceilings(options)
    )
    print_secret(options, _plain(token), secret)
    say(
        f"token {token.id}: {token_words(_plain(token))}. It is shown this once; whoever holds it "
        "may do this.",
        to_error=True,
    )
    return 0


def _register(connection: sql.Connection, options: Namespace) -> int:
    try:
        secret = read_secret(options.file.read_text())
    except OSError as error:
        raise CommandFailed(f"{options.file} cannot be read: {error.strerror}") from error
    grant = _grant(options)
    token = register_token(
        connection, grant, secret, operator_name(), options.reason, _ceilings(options)
    )
    if options.json:
        print_json(_plain(token))
    say(f"token {token.id}: {token_words(_plain(token))}", to_error=True)
    return 0


def _ceilings(options: Namespace) -> Ceilings:
    return Ceilings(database_settings(options.directory).agent_token_days)


def _list(connection: sql.Connection, options: Namespace) -> int:
    found, _ = list_tokens(connection, None, PageWanted(most(options)))
    if options.json:
        print_json([_plain(token) for token in found])
        return 0
    print(
        table(TOKEN_HEAD, [token_row(_plain(token)) for token in found])
        if found
        else "No token works."
    )
    for token in expiring_agents(connection):
        say(expiry_words(asdict(token)), to_error=True)
    return 0


def _revoke(connection: sql.Connection, options: Namespace) -> int:
    withdraw_token(connection, options.id, None, operator_name(), options.reason)
    return told(options, {"id": options.id, "revoked": True}, revoked_words(options.id))


_TOKEN_WORDS = {"create": _create, "register": _register, "list": _list, "revoke": _revoke}


def _plain(token: Token) -> dict[str, Any]:
    """As the API answers it."""
    plain: dict[str, Any] = json.loads(bytes(JsonReply(asdict(token)).body))
    return plain
