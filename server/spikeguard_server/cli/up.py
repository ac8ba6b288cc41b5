"""`spikeguard up`: database, server and dashboard on this machine, and a login for you.

One process owns the rest: it holds both ports before anything is started or announced, and ends
when one of them ends; a process manager starts it again. Whatever ends it, a signal at any moment
or SIGKILL, leaves nothing running: the database's keeper waits on a pipe from us, and the kernel
ends the dashboard with us. Everything listens on the loopback only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import stat
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from types import FrameType

from sqlalchemy import make_url

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.extras import install_command
from spikeguard_server.cli import embedded_postgres as postgres
from spikeguard_server.cli.private_files import kept_secret, write_private
from spikeguard_server.cli.serve import serve
from spikeguard_server.cli.sockets import listen
from spikeguard_server.cli.up_dashboard import (
    Dashboard,
    address_in_browser,
    dashboard,
    dashboard_installed,
)
from spikeguard_server.cli.up_login import UpCredentials, prepare_login
from spikeguard_server.cli.up_ready import Announcement, announce_when_ready
from spikeguard_server.identity.permissions import new_secret
from spikeguard_server.log_limits import write_log
from spikeguard_server.settings import LEAST_LINK_KEY, SettingError, Settings, read_settings
from spikeguard_server.store.database import STATE, data_directory, opened
from spikeguard_server.store.schema import prepare

HOST = "127.0.0.1"
LOCK = "up.lock"
LINK_KEY = "link_key"
POSTGRES = "postgres"
LOOK_EVERY_S = 0.2
PAUSE_S = 0.5  # by then a stop of the whole machine has reached us as well
UNMAPPED = 65534  # how owners look that a user namespace does not know
SERVER_ROLE = "spikeguard_server"


@dataclass(frozen=True, slots=True)
class UpDirectory:
    """Where everything of this `up` is."""

    directory: Path
    listener: socket.socket  # the server's
    pages: socket.socket | None  # the dashboard's

    @property
    def server(self) -> str:
        return _address(self.listener)

    @property
    def dashboard(self) -> str | None:
        return None if self.pages is None else _address(self.pages)


def _address(listener: socket.socket) -> str:
    return f"http://{HOST}:{listener.getsockname()[1]}"


def run(options: Namespace) -> int:
    """Start everything, say so, and stay until told to stop."""
    _stop_on_signals()
    watch = _Watch()
    try:
        with ExitStack() as stack:
            stack.callback(_ignore_signals)
            _start(stack, options, watch)
    except _Stopped:
        if watch.failure is not None:
            raise CommandFailed(watch.failure) from None
        print("stopped", file=sys.stderr)
    except postgres.EmbeddedError as error:
        raise CommandFailed(str(error)) from error
    return 0


def _start(stack: ExitStack, options: Namespace, watch: _Watch) -> None:
    account = _account(options.account)
    directory = _prepare((options.directory or data_directory()).expanduser().resolve(), account)
    os.umask(0o077)  # logs and locks as well are for nobody else
    stack.enter_context(_owned(directory))
    place = _place(stack, options, directory)
    settings = _settings(place)
    write_log(settings.log_format)
    children: list[_Child] = []
    if not settings.database_url:
        database = stack.enter_context(
            postgres.running(database_directory(directory), account=account)
        )
        settings = replace(
            settings, owner_database_url=database.url, database_url=_of_server(database.url)
        )
        children.append(database)
    prepare(settings, make=bool(children))
    engine = stack.enter_context(opened(settings))
    login = prepare_login(engine, settings, directory, options.name)
    if place.pages is not None:
        pages = dashboard(directory, place.pages, place.server)
        children.append(stack.enter_context(pages))
    stack.enter_context(watch.over(children))
    stack.enter_context(_state(directory, settings))
    announcement = _announcement(place, login, options)
    stack.enter_context(announce_when_ready(announcement))
    serve(settings, engine, place.listener, watch.stopping.set)


_Child = postgres.EmbeddedServer | Dashboard


class _Watch:
    """Ends everything when one process ends by itself."""

    def __init__(self) -> None:
        self.failure: str | None = None  # why everything ends, if a process ended by itself
        self.stopping = Event()  # a process that ends from now on is meant to

    @contextmanager
    def over(self, children: Sequence[_Child]) -> Iterator[None]:
        """Look after `children` beside the server."""
        thread = Thread(target=self._look, args=(children,), name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            thread.join()

    def _look(self, children: Sequence[_Child]) -> None:
        gone: _Child | None = None
        while gone is None and not self.stopping.wait(LOOK_EVERY_S):
            gone = next((child for child in children if child.ended()), None)
        if gone is not None and not self.stopping.wait(PAUSE_S):
            self.failure = (
                f"{gone.name} ended, so everything is stopped; what is stored stays. See why in "
                f"{gone.log}, mend it, and run `spikeguard up` again"
            )
            os.kill(os.getpid(), signal.SIGTERM)


def _of_server(url: str) -> str:
    """The same database as a role that owns nothing in it."""
    return make_url(url).set(username=SERVER_ROLE).render_as_string(hide_password=False)


def _announcement(place: UpDirectory, login: UpCredentials, options: Namespace) -> Announcement:
    return Announcement(
        directory=place.directory,
        server=place.server,
        dashboard=place.dashboard,
        pages=address_in_browser(place.dashboard or ""),
        login=login,
        json_ready=options.json_ready,
        as_json=options.json,
    )


def _account(name: str | None) -> str | None:
    """Whom Postgres runs as where we are root: nobody's database is given away unasked."""
    if os.geteuid() != 0:
        if name is not None:
            raise CommandFailed("--account is for root: Postgres runs as you")
        return None
    if name is None and not _given_settings().database_url:
        raise CommandFailed(
            "`spikeguard up` is run by root, and Postgres does not run as root. Run it as another "
            "user; or name the account that Postgres runs as: `spikeguard up --account NAME`. "
            "Whoever runs programs as that account can read and change the database, so take one "
            "that runs nothing else (`useradd --system spikeguard` makes one)"
        )
    return name


def _prepare(directory: Path, account: str | None = None) -> Path:
    """Make the directory: ours alone, but for root, whose Postgres runs as another account."""
    if not directory.is_dir() and directory.exists():
        raise CommandFailed(f"{directory} is a file: name a folder with --directory")
    directory.mkdir(parents=True, exist_ok=True)
    if (owner := directory.stat().st_uid) != os.geteuid():
        raise CommandFailed(
            f"{directory} belongs to user {owner}, who could put tokens of theirs into it: choose "
            "another place with --directory, or one that is not there yet"
        )
    directory.chmod(0o711 if os.geteuid() == 0 else 0o700)
    for path in (directory.parent, *directory.parent.parents):
        _check_above(path)
    for path in directory.iterdir():  # what was put there while others could write in it
        _check_inside(path, account)
    return directory


def _check_above(path: Path) -> None:
    """Whoever can write in a folder above can put another one in place of ours."""
    found = path.stat()
    open_to_all = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    foreign = found.st_uid not in (os.geteuid(), 0)
    if foreign and os.geteuid() != 0 and found.st_uid == UNMAPPED:
        foreign = False  # in a container of this user's: the host's root
    if open_to_all or foreign:
        whose = "is open to every user" if open_to_all else f"belongs to user {found.st_uid}"
        raise CommandFailed(
            f"{path} {whose}, who could put tokens of theirs into what lies in it: choose another "
            "place with --directory"
        )


def _check_inside(path: Path, account: str | None) -> None:
    """Files of `up` are ours; the database's folder is that of the account that it runs as."""
    found = path.lstat()
    trusted = {os.geteuid()}
    if stat.S_ISDIR(found.st_mode) and path.name == POSTGRES and os.geteuid() == 0:
        trusted.add(postgres.account_of_root(account).pw_uid)
    plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    if plain and found.st_uid in trusted:
        return
    what = f"belongs to user {found.st_uid}" if plain else "is no plain file"
    raise CommandFailed(
        f"{path} {what}: another user may have put it there. Remove it, or choose another place "
        "with --directory"
    )


@contextmanager
def _owned(directory: Path) -> Iterator[None]:
    """Hold the directory's lock; it goes with this process, however that ends."""
    with (directory / LOCK).open("ab") as lock:
        os.fchmod(lock.fileno(), 0o600)  # whoever may read it could hold the lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFailed(
                f"another `spikeguard up` runs in {directory}: stop that one, or choose another "
                "place with --directory"
            ) from None
        yield


def _place(stack: ExitStack, options: Namespace, directory: Path) -> UpDirectory:
    listener = stack.enter_context(listen(HOST, options.port))
    if options.no_dashboard:
        return UpDirectory(directory, listener, None)
    if not dashboard_installed():
        print(f"no dashboard, which needs streamlit: {install_command('up')}", file=sys.stderr)
        return UpDirectory(directory, listener, None)
    pages = listen(HOST, options.dashboard_port, "--dashboard-port, or --no-dashboard")
    return UpDirectory(directory, listener, stack.enter_context(pages))


def _settings(place: UpDirectory) -> Settings:
    """What the environment says, with the addresses that are ours."""
    settings = _given_settings()
    given = os.environ.get("SPIKEGUARD_PUBLIC_URL")
    link_key = settings.link_key or _kept_link_key(place.directory / LINK_KEY)
    return replace(
        settings,
        host=HOST,
        port=place.listener.getsockname()[1],
        public_url=given or address_in_browser(place.server),
        dashboard_url=address_in_browser(place.dashboard or ""),
        link_key=link_key,
    )


def _given_settings() -> Settings:
    """What the environment says; raise `CommandFailed` naming the variable that is wrong."""
    try:
        return read_settings()
    except SettingError as error:
        raise CommandFailed(str(error)) from error


def _kept_link_key(file: Path) -> str:
    """The key that signs approval links: the same from start to start, or links that were sent
    would be void."""
    try:
        key = kept_secret(file, new_secret)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file} cannot be read: {error}") from error
    if len(key) < LEAST_LINK_KEY:
        raise CommandFailed(
            f"{file} has fewer than {LEAST_LINK_KEY} characters: remove it, and a new key is made; "
            "approval links that were sent are void then"
        )
    return key


def database_directory(directory: Path) -> Path:
    """Where the database of an `up` lies: in its directory, unless Postgres could not live there.

    Its socket's path may not be long, and as root it runs as an account that must get there.
    """
    inside = directory / POSTGRES
    short = len(os.fsencode(inside / ".s.PGSQL.5432.lock")) <= postgres.MAX_SOCKET_PATH
    if short and (os.geteuid() != 0 or all(_open_to_all(path) for path in inside.parents)):
        return inside
    mark = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    return postgres.default_directory().with_name(f"postgres-{mark}")


def _open_to_all(directory: Path) -> bool:
    return bool(directory.stat().st_mode & 0o001)


@contextmanager
def _state(directory: Path, settings: Settings) -> Iterator[None]:
    """Tell `spikeguard token` where the database is, while it is there."""
    urls = {name: getattr(settings, name) for name in ("database_url", "owner_database_url")}
    write_private(directory / STATE, json.dumps(urls))
    try:
        yield
    finally:
        (directory / STATE).unlink(missing_ok=True)


class _Stopped(BaseException):
    """SIGINT or SIGTERM came: unwind, and stop what was started, newest first."""


def _stop_on_signals() -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        _ignore_signals()
        raise _Stopped

    def hang_up(number: int, frame: FrameType | None) -> None:
        del number, frame
        os.kill(os.getpid(), signal.SIGTERM)  # which the server knows how to end by

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, hang_up)


def _ignore_signals() -> None:
    """From here on we are stopping; a second Ctrl-C must not leave anything behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
