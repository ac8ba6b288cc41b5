"""`spikeguard token` on the database itself, beside the server: for the first of all, and for one
that was made elsewhere.

Everything done here stands in the audit under the name of the account that did it.
"""

from __future__ import annotations

import getpass
import json
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from spikeguard_cli.access_commands import show_once, token_words, wanted_token
from spikeguard_cli.command import CommandFailed, say
from spikeguard_cli.options import print_json
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.identity.permissions import read_secret
from spikeguard_server.store.audit import MAX_REASON
from spikeguard_server.store.schema import database_settings, opened


def account_name() -> str:
    """Of the account that runs us."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"


def run_token(options: Namespace) -> int:
    """One of create, register."""
    reason = options.reason
    if reason is not None and not 1 <= len(reason) <= MAX_REASON:
        raise CommandFailed(
            f"--reason takes 1 to {MAX_REASON} characters, this one has {len(reason)}: shorten it"
        )
    made, secret = options.word == "create", None
    if not made:
        try:
            secret = read_secret(options.file.read_text())
        except OSError as error:
            raise CommandFailed(f"{options.file} cannot be read: {error.strerror}") from error
    settings = database_settings(options.directory)
    by = Actor(f"{account_name()} on the command line", ActorKind.COMMAND_LINE)
    with opened(settings) as engine, engine.begin() as connection:
        shown, token = issue_token(
            connection, Grant(**wanted_token(options)), by, reason,
            agent_days=settings.agent_token_days,
            secret=secret,
        )  # fmt: skip
    plain: dict[str, Any] = json.loads(bytes(JsonReply(asdict(token)).body))  # as the API answers
    if made:
        return show_once(options, plain, shown)
    if options.json:
        print_json(plain)
    say(f"token {token.id}: {token_words(plain)}", to_error=True)
    return 0
