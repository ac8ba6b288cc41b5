"""`spikeguard up`: database, server and dashboard on this machine, and a login for you.

One process owns the rest: it holds both ports before anything is started or announced, and ends
when one of them ends; a process manager starts it again. Whatever ends it leaves nothing running:
the kernel ends Postgres and the dashboard with us. Everything listens on the loopback only.

Secrets lie in files that only you can read, one token each with the least role; the command line's
credentials are a session in your name, as everybody else's. Whoever starts everything may change
everything (the database is theirs), so that session is an admin's; the token for people is an
operator's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Thread

import sqlalchemy as sql
import uvicorn

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.credentials import Credentials, credentials_path, save_credentials
from spikeguard_cli.extras import install_command
from spikeguard_cli.own_files import read_own, write_own
from spikeguard_core.setting_fields import SettingError
from spikeguard_protocol import Role
from spikeguard_server.access.grants import (
    Grant,
    issue_token,
    make_sign_in_link,
    open_session,
    sign_in_url,
)
from spikeguard_server.cli.embedded_postgres import MAX_SOCKET_PATH, Child, child_process, embedded
from spikeguard_server.cli.serve import account_name, listen, make_server
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.identity.permissions import Caller, hash_secret, new_secret, read_secret
from spikeguard_server.log_format import write_log
from spikeguard_server.settings import Settings, read_settings
from spikeguard_server.store.schema import STATE, data_directory, opened, prepare
from spikeguard_server.store.tokens import find_caller

HOST = "127.0.0.1"
IN_BROWSER = "spikeguard.localhost"  # browsers find it; with another name no cookie comes along
LOOK_EVERY_S = 0.2
PAUSE_S = 0.5  # by then a stop of the whole machine has reached us as well
SERVER_ROLE = "spikeguard_server"
DASHBOARD = "spikeguard_dashboard"
MADE_BY = Actor("spikeguard up", ActorKind.COMMAND_LINE)
DASHBOARD_REFRESH = "SPIKEGUARD_DASHBOARD_REFRESH"  # the dashboard's one setting

READY = """
spikeguard is up. Ctrl-C stops everything; the data stays.

{dashboard}  server      {server}
  data, logs  {directory}

To decide in the browser, open this; it signs you in once, within 10 minutes:
  {sign_in_link}
  (where a browser does not find spikeguard.localhost, write 127.0.0.1;
  `spikeguard open --sign-in` prints another; or sign in at /login with your name
  and the token in {login_token_file})
On the command line you are logged in as {name}: `{first_command}`.

For a training job:
  export SPIKEGUARD_SERVER={server}
  export SPIKEGUARD_TOKEN_FILE={agent_token_file}
"""


def run(options: Namespace) -> int:
    """Start everything, say so, and stay until told to stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        with ExitStack() as stack:
            _serve_all(stack, options)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    except SettingError as error:
        raise CommandFailed(str(error)) from error
    return 0


def _serve_all(stack: ExitStack, options: Namespace) -> None:
    settings = read_settings()
    write_log(settings.log_format)
    directory = _own_directory((options.directory or data_directory()).expanduser().resolve())
    os.umask(0o077)  # logs and locks as well are for nobody else
    listener = stack.enter_context(listen(HOST, options.port))
    server = f"http://{HOST}:{listener.getsockname()[1]}"
    pages = _dashboard_socket(options)
    dashboard = None
    if pages is not None:
        dashboard = f"http://{HOST}:{stack.enter_context(pages).getsockname()[1]}"
    settings = replace(
        settings,
        host=HOST,
        port=listener.getsockname()[1],
        public_url=os.environ.get("SPIKEGUARD_PUBLIC_URL") or in_browser(server),
        dashboard_url=in_browser(dashboard or ""),
    )
    children: list[Child] = []
    if embeds := not settings.database_url:
        _refuse_unnamed_account(options.account)
        url, postgres = stack.enter_context(
            embedded(_database_directory(directory), account=options.account)
        )
        children.append(postgres)
        mine = sql.make_url(url).set(username=SERVER_ROLE).render_as_string(hide_password=False)
        settings = replace(settings, owner_database_url=url, database_url=mine)
    prepare(settings, make=embeds)
    engine = stack.enter_context(opened(settings))
    login = prepare_login(engine, settings, directory, options.name, in_browser(server))
    if pages is not None:
        child = _dashboard(directory, pages, {"SERVER": server, "PUBLIC_URL": settings.public_url})
        children.append(stack.enter_context(child))
    urls = {name: getattr(settings, name) for name in ("database_url", "owner_database_url")}
    write_own(directory / STATE, json.dumps(urls))  # for `spikeguard token`
    stack.callback((directory / STATE).unlink)
    uvicorn_server, failures = make_server(settings, engine), list[str]()
    facts = {
        "server": server,
        "dashboard": dashboard,
        "pages": dashboard and in_browser(dashboard),
        "directory": str(directory),
        **login,
    }
    watched = (uvicorn_server, children, facts, options, failures)
    Thread(target=_watch, args=watched, daemon=True).start()
    uvicorn_server.run(sockets=[listener])
    if failures:
        raise CommandFailed(failures[0])


def _database_directory(directory: Path) -> Path:
    """Where the database lies: in `directory`, unless Postgres could not live there. Its socket's
    path may not be long, and root's runs as an account that must get there."""
    inside = directory / "postgres"
    reached = os.geteuid() != 0 or all(path.stat().st_mode & 0o001 for path in inside.parents)
    if reached and len(os.fsencode(inside / ".s.PGSQL.5432.lock")) <= MAX_SOCKET_PATH:
        return inside
    mark = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    return _own_directory(data_directory()) / f"postgres-{mark}"


def in_browser(address: str) -> str:
    """An address of this machine by the name that people's browsers use."""
    return address.replace(f"//{HOST}:", f"//{IN_BROWSER}:")


def _own_directory(directory: Path) -> Path:
    """Make it ours alone, but for root, whose Postgres runs as another account."""
    if directory.exists() and not directory.is_dir():
        raise CommandFailed(f"{directory} is a file: name a folder with --directory")
    directory.mkdir(parents=True, exist_ok=True)
    found = directory.stat()
    foreign = found.st_uid != os.geteuid()
    if foreign or found.st_mode & 0o002:
        whose = f"belongs to user {found.st_uid}" if foreign else "is open to every user"
        raise CommandFailed(
            f"{directory} {whose}, who could put tokens of theirs into it: choose another place "
            "with --directory, or one that is not there yet"
        )
    directory.chmod(0o711 if os.geteuid() == 0 else 0o700)
    return directory


def _refuse_unnamed_account(name: str | None) -> None:
    """Nobody's database is given away unasked."""
    if os.geteuid() == 0 and name is None:
        raise CommandFailed(
            "`spikeguard up` is run by root, and Postgres does not run as root. Run it as another "
            "user; or name the account that Postgres runs as: `spikeguard up --account NAME`. "
            "Whoever runs programs as that account can read and change the database, so take one "
            "that runs nothing else (`useradd --system spikeguard` makes one)"
        )
    if os.geteuid() != 0 and name is not None:
        raise CommandFailed("--account is for root: Postgres runs as you")


def _dashboard_socket(options: Namespace) -> socket.socket | None:
    if options.no_dashboard:
        return None
    if not all(importlib.util.find_spec(name) for name in (DASHBOARD, "streamlit")):
        print(f"no dashboard, which needs streamlit: {install_command('up')}", file=sys.stderr)
        return None
    return listen(HOST, options.dashboard_port, "--dashboard-port, or --no-dashboard")


def _dashboard(
    directory: Path, pages: socket.socket, given: dict[str, str]
) -> AbstractContextManager[Child]:
    """The dashboard, which knows nothing of the database: `given` and its own settings alone."""
    ours = ("SPIKEGUARD_", "DATABASE_", "PG")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == DASHBOARD_REFRESH or not name.startswith(ours)
    }
    return child_process(
        "the dashboard",
        [sys.executable, "-m", DASHBOARD, "--descriptor", str(pages.fileno())],
        directory / "dashboard.log",
        signal.SIGKILL,  # there is nothing that it would have to store
        pass_fds=(pages.fileno(),),
        env={**kept, **{f"SPIKEGUARD_{name}": value for name, value in given.items()}},
    )


def _watch(
    server: uvicorn.Server, children: Sequence[Child], facts: dict[str, str | None],
    options: Namespace, failures: list[str],
) -> None:  # fmt: skip
    """Say when all is up, and end everything when one process ends by itself: why is added to
    `failures`."""
    while not server.started:
        if server.should_exit:
            return
        time.sleep(LOOK_EVERY_S)
    if options.json_ready is not None:
        write_own(options.json_ready, json.dumps(facts, indent=1))
    pages = f"  dashboard   {facts['pages']}\n" if facts["pages"] else ""
    told = READY.format(**{**facts, "dashboard": pages})
    print(json.dumps(facts) if options.json else told, flush=True)
    while not (ended := [child for child in children if child.process.poll() is not None]):
        time.sleep(LOOK_EVERY_S)
    time.sleep(PAUSE_S)
    if not server.should_exit:
        failures.append(
            f"{ended[0].name} ended, so everything is stopped; what is stored stays. See why in "
            f"{ended[0].log}, mend it, and run `spikeguard up` again"
        )
        server.should_exit = True


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


def _holder(connection: sql.Connection, file: Path, role: Role, use: str) -> Caller:
    """Who the token of `file` speaks for; it is made where it is missing or no longer works. Raise
    `OSError` where it cannot be read: a secret that is there is never replaced."""
    while True:
        if not file.exists():
            write_own(file, new_secret() + "\n")
        secret = read_secret(read_own(file).strip())
        issue_token(connection, Grant(role, name=use), MADE_BY, secret=secret)
        if (caller := find_caller(connection, hash_secret(secret))) is not None:
            return caller
        file.unlink()
