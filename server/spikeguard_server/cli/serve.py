"""`spikeguard serve`, `migrate` and `token`: one process on a database that exists.

Refuses to start without a database; a typo must not become an empty one that takes data. What
`token` does stands in the audit under the name of the account that ran it.
"""

from __future__ import annotations

import gc
import getpass
import json
import logging
import math
import resource
import socket
import sys
from argparse import Namespace
from dataclasses import asdict, replace
from importlib import import_module
from threading import Timer
from typing import Any

import sqlalchemy as sql
import uvicorn
from fastapi import FastAPI

from spikeguard_cli.access_commands import show_once, token_words, wanted_token
from spikeguard_cli.command import CommandFailed, say
from spikeguard_cli.options import print_json, told
from spikeguard_core.setting_fields import SettingError
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.http.app import create_app
from spikeguard_server.http.dependencies import Services
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.identity.permissions import read_secret
from spikeguard_server.log_format import write_log
from spikeguard_server.settings import Settings, read_settings
from spikeguard_server.store.audit import MAX_REASON
from spikeguard_server.store.engine import takes_no_writes
from spikeguard_server.store.migrations import NewerSchema
from spikeguard_server.store.schema import audit_warning, database_settings, opened, prepare

_log = logging.getLogger(__name__)
GRACE_S = 10  # for requests that are under way when we are told to stop
SETTLE_AFTER_S = 5.0
# A thread that computes hands the interpreter on after so long, seconds. The event loop asks for it
# some ten times a call; by the default, 0.005, many reads at once keep messages waiting for
# seconds (measured 2026-11-25), while ingest is as fast with either.
SWITCH_S = 0.0005
MAX_HEAD = 65_536  # bytes of a request's line and header
MAX_CONNECTIONS = 10_000  # that clients hold open; beyond it 503
BACKLOG = 2048  # connections that wait to be taken
DESCRIPTORS = MAX_CONNECTIONS + 256  # of files; some are for all that is no client's connection


def run(options: Namespace) -> int:
    """Migrate, then serve until told to stop."""
    try:
        settings = read_settings()
    except SettingError as error:
        raise CommandFailed(str(error)) from error
    if not settings.database_url:
        raise CommandFailed(
            "DATABASE_URL: is not set. Set it to postgresql://USER@HOST/NAME, or use `spikeguard "
            "up` for an embedded one"
        )
    write_log(settings.log_format)
    host, port = options.host or settings.host, options.port
    settings = replace(settings, host=host, port=settings.port if port is None else port)
    with opened(settings, migrated=False) as engine:
        with engine.connect() as connection:
            if takes_no_writes(connection):  # a server that could store nothing takes no messages
                raise CommandFailed(
                    "the database takes no writes: it is a standby, or somebody made it read-only. "
                    "Let DATABASE_URL lead to the primary"
                )
        try:
            prepare(settings)
        except CommandFailed as failed:  # amid an upgrade a replica of the older release serves on
            if not isinstance(failed.__cause__, NewerSchema):
                raise
            _log.warning("%s; until then this one serves beside it, and is not ready", failed)
        with listen(settings.host, settings.port) as listener:
            serve(settings, engine, listener)
    return 0


def migrate_database(options: Namespace) -> int:
    """Bring the schema to this version's revision."""
    settings = database_settings(options.directory)
    prepare(settings)
    with opened(settings) as engine:
        told(options, {"migrated": True}, "the database is at this version's schema")
        _warn(engine)
    return 0


def account_name() -> str:
    """Of the account that runs us."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"


def run_token(options: Namespace) -> int:
    """Make a token on the database itself: the first of all, or one that was made elsewhere."""
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


def _warn(engine: sql.Engine) -> None:
    if (warning := audit_warning(engine)) is not None:
        _log.warning("%s", warning)


def serve(settings: Settings, engine: sql.Engine, listener: socket.socket) -> None:
    """Answer on `listener` until SIGINT or SIGTERM."""
    make_server(settings, engine).run(sockets=[listener])


def make_server(settings: Settings, engine: sql.Engine) -> uvicorn.Server:
    """A server that is ready to run in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    sys.setswitchinterval(SWITCH_S)
    config = server_config(create_app(settings, engine))
    timer = Timer(SETTLE_AFTER_S, _settle)
    timer.daemon = True
    timer.start()
    _warn(engine)
    return uvicorn.Server(config)


def _settle() -> None:
    """What draws takes 0.7 s to load: not at the start, nor when somebody is paged. What is loaded
    by then stays: each full collection would look at it for 0.1 s, in which no message is taken."""
    import_module("spikeguard_server.report.plots")
    gc.collect()
    gc.freeze()


def server_config(app: FastAPI) -> uvicorn.Config:
    """How uvicorn serves `app`.

    A proxy bounds heads, and httptools reads them faster; h11 bounds them itself.
    """
    services: Services = app.state.services
    settings = services.settings
    return uvicorn.Config(
        app,
        http="httptools" if settings.trusted_proxies or settings.sign_in_proxies else "h11",
        h11_max_incomplete_event_size=MAX_HEAD,
        limit_concurrency=MAX_CONNECTIONS,
        ws="none",
        log_config=None,  # `write_log` says where, and in which form
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # `RequestMiddleware` has to see who opened the connection
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=math.ceil(settings.keep_alive_s),
    )


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket that listens, so that the port is ours before anybody is told of it; raise
    `CommandFailed` where it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, or asyncio leaves Nagle's algorithm on: 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CommandFailed(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another with {option}"
        ) from error
    except OverflowError as error:
        listener.close()
        raise CommandFailed(f"{option} takes 0 to 65535, and got {port}") from error
    return listener
