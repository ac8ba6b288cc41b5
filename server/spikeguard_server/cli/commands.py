"""The server's words of `spikeguard`: up, serve, migrate, token, policy, replay, backtest.

Importing this needs the standard library only; what a command needs beyond that is imported when it
runs, so that help works everywhere.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from spikeguard_cli.access_commands import policy_over_http, token_over_http
from spikeguard_cli.command import Command, CommandFailed, client_command
from spikeguard_cli.credentials import logged_in
from spikeguard_cli.extras import install_command
from spikeguard_cli.options import checked, json_option, limit_option
from spikeguard_protocol import DEFAULT_PROJECT, Role
from spikeguard_replay.commands import BACKTEST, REPLAY

_DATABASE = tuple(
    f"{prefix}DATABASE_URL{suffix}" for prefix in ("", "SPIKEGUARD_") for suffix in ("", "_FILE")
)
_SERVER = ("fastapi", "sqlalchemy", "uvicorn", "alembic", "psycopg", "prometheus_client")


def _from(module: str, function: str) -> Callable[[Namespace], int]:
    """A command whose code is imported when it runs."""

    def run(options: Namespace) -> int:
        status: int = getattr(import_module(f"spikeguard_server.cli.{module}"), function)(options)
        return status

    return run


def _token(options: Namespace) -> int:
    """The first token of all, and one made elsewhere, on the database; else over HTTP."""
    if options.word not in ("create", "register"):
        return token_over_http(options)
    here = options.directory is not None or any(os.environ.get(name) for name in _DATABASE)
    if options.word == "create" and not here and logged_in():
        return token_over_http(options)
    if missing := [name for name in _SERVER if find_spec(name) is None]:
        raise CommandFailed(
            f"on the database itself `spikeguard token` needs {', '.join(missing)}: "
            f"{install_command('server')}, or `spikeguard login` and do it over HTTP"
        )
    return _from("serve", "run_token")(options)


def _up_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        type=Path,
        help="where database, tokens and logs are kept (default ~/.local/share/spikeguard; "
        "as root /var/lib/spikeguard)",
    )
    parser.add_argument(
        "--account",
        metavar="NAME",
        help="as root: the account that Postgres runs as, which should run nothing else",
    )
    parser.add_argument("--port", type=int, default=8000, help="of the server; 0 takes a free one")
    parser.add_argument(
        "--dashboard-port", type=int, default=8501, help="of the dashboard; 0 takes a free one"
    )
    parser.add_argument("--no-dashboard", action="store_true", help="start the server alone")
    parser.add_argument("--name", help="your name, for decisions made on the command line")
    parser.add_argument(
        "--json-ready",
        type=Path,
        metavar="FILE",
        help="write addresses and token files here once all is healthy, for scripts",
    )
    parser.add_argument(
        "--json", action="store_true", help="print them as one JSON object once all is healthy"
    )


def _serve_options(parser: ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default SPIKEGUARD_HOST, 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default SPIKEGUARD_PORT)")


def _directory_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        type=Path,
        help="the directory of `spikeguard up`: use its database directly instead of HTTP and your "
        "login. DATABASE_URL, if set, names the database",
    )
    json_option(parser)


def _token_options(parser: ArgumentParser) -> None:
    words = parser.add_subparsers(dest="word", required=True, metavar="WORD")
    create = words.add_parser("create", help="make a token; it is printed only once")
    register = words.add_parser(
        "register", help="register a secret that was made elsewhere as a token"
    )
    for word in (create, register):
        _grant_options(word)
    register.add_argument("--file", type=Path, required=True, help="the file that holds the secret")
    listing = words.add_parser("list", help="list the tokens that work, without their secrets")
    revoke = words.add_parser("revoke", help="revoke a token and its sessions")
    revoke.add_argument("id", type=int, metavar="ID", help="its number in `spikeguard token list`")
    for word in (create, register, revoke):
        word.add_argument("--reason", help="why; the record keeps it")
    limit_option(listing, default=0)
    for word in (create, register):
        _directory_option(word)
    for word in (listing, revoke):
        json_option(word)


def _grant_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--role",
        type=checked(Role, bool, f"is no role: give {', '.join(Role)}"),
        metavar="ROLE",
        required=True,
        help="agent (training jobs), viewer (looks), operator (decides), admin, metrics",
    )
    parser.add_argument("--project", help="good for this project only (default: for all)")
    parser.add_argument(
        "--run",
        metavar="PROJECT/NAME",
        help="role agent: good for this run only, which need not exist yet (default: for all)",
    )
    parser.add_argument(
        "--person", metavar="NAME", help="whose it is: their name stands behind every decision"
    )
    parser.add_argument(
        "--unnamed",
        action="store_true",
        help="role operator, admin: nobody's in particular; whoever signs in with it types a name",
    )
    parser.add_argument("--name", help="what it is for, as `spikeguard token list` shows it")
    parser.add_argument(
        "--expires-in",
        type=float,
        metavar="DAYS",
        help="days until it ends (default: never; role agent: SPIKEGUARD_AGENT_TOKEN_DAYS, 365)",
    )


def _policy_options(parser: ArgumentParser) -> None:
    words = parser.add_subparsers(dest="word", required=True, metavar="WORD")
    load = words.add_parser("import", help="put the policy of a TOML file in force")
    load.add_argument(
        "file", type=Path, metavar="FILE", help="what it leaves out takes its default"
    )
    show = words.add_parser("show", help="print the policy in force, as TOML")
    drop = words.add_parser("drop", help="let a run follow its project's policy again")
    for word in (load, show):
        word.add_argument("--run", help="this run's own policy (default: its project's)")
    drop.add_argument("--run", required=True, help="which run")
    for word in (load, drop):
        word.add_argument("--reason", help="why; the record keeps it")
    halt = words.add_parser("halt", help="the kill switch: approve and deliver nothing")
    resume = words.add_parser("resume", help="lift the kill switch")
    for word in (halt, resume):
        word.add_argument("--reason", required=True, help="why; the record keeps it")
    for word in (load, show, drop, halt, resume):
        word.add_argument("--project", default=DEFAULT_PROJECT, help="which one (default: default)")
        json_option(word)


COMMANDS: tuple[Command, ...] = (
    Command(
        "up", "start everything on this machine: database, server, dashboard, a login for you",
        _from("up", "run"), _up_options, "up", _SERVER,
    ),
    Command(
        "serve", "run the server on the database that DATABASE_URL names",
        _from("serve", "run"), _serve_options, "server", _SERVER,
    ),
    Command(
        "migrate", "bring the database to this version's schema, once",
        _from("serve", "migrate_database"), _directory_option, "server", _SERVER,
    ),
    client_command("token", "make, list and revoke access tokens", _token, _token_options),
    client_command(
        "policy", "show, import and halt the policy in force", policy_over_http, _policy_options
    ),
    REPLAY,
    BACKTEST,
)  # fmt: skip
