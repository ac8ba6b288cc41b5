"""What is disturbed: replicas as processes of their own, on one real Postgres that can be killed.

Law: every process is started here and ended here, by its own id; every replica listens on
127.0.0.1. A replica is forked from a process that has read the code already: so it starts in a
tenth of a second, and is killed with a signal like any other.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from benchmarks.http_server import free_port
from benchmarks.ingest_servers import HOST, new_database, prepare
from spikeguard_core.policy.settings import (
    ApprovalMode,
    ApprovalRule,
    Policy,
    policy_to_mapping,
)
from spikeguard_protocol import Verb
from spikeguard_server.access.grants import put_policy
from spikeguard_server.cli.embedded_postgres import embedded
from spikeguard_server.cli.serve import listen, serve
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine

READY_S = 60.0
PRELOADED = ("benchmarks.faults_scenarios", "benchmarks.fuzz_calls")  # what a fork imports again
_FORKING = get_context("forkserver")


@dataclass
class Database:
    """One Postgres of our own, with its data in `directory`."""

    directory: Path
    url: str = ""
    _running: ExitStack = field(default_factory=ExitStack)
    _starter: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def start(self) -> None:
        """Start it, on what it held before; it ends with the thread that starts it."""
        server = embedded(self.directory)
        self.url = self._starter.submit(self._running.enter_context, server).result()

    def stop(self) -> None:
        """Stop it in order: connections are cut, what was committed is written down."""
        self._running.close()

    def crash(self) -> None:
        """SIGKILL to every process of it; what was committed has to come back from the log."""
        processes = [*self.backends(), self.postmaster]
        for process in reversed(processes):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _await_dead(processes)
        self._running.close()

    def freeze(self, seconds: float) -> int:
        """Stop what serves connections for a while: a disk or a machine that hangs."""
        stopped = [p for p in self.backends() if _is_serving(p)]
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        time.sleep(seconds)
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        return len(stopped)

    @property
    def answers(self) -> bool:
        """Whether it takes connections."""
        with suppress(SQLAlchemyError), self.control() as connection:
            return bool(connection.execute(sql.text("select true")).scalar_one())
        return False

    @property
    def postmaster(self) -> psutil.Process:
        """The process that the others are children of."""
        file = self.directory / "data" / "postmaster.pid"
        return psutil.Process(int(file.read_text().splitlines()[0]))

    def backends(self) -> list[psutil.Process]:
        """Its processes but the first."""
        with suppress(psutil.NoSuchProcess, OSError, ValueError, IndexError):
            return list(self.postmaster.children())
        return []

    def cut_connections(self) -> int:
        """End every connection of the replicas; returns how many there were."""
        with self.control() as connection:
            return len(connection.execute(_CUT).all())

    @contextmanager
    def control(self) -> Iterator[sql.Connection]:
        """A connection of our own."""
        engine = sql.create_engine(self.url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()


def _await_dead(processes: list[psutil.Process]) -> None:
    """Nobody reaps them before we close, so a zombie is dead enough."""
    deadline = time.monotonic() + READY_S
    while any(map(_is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _is_serving(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "spikeguard" in " ".join(process.cmdline())
    return False


_CUT = sql.text(
    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'spikeguard'"
)


def _serve(settings: Settings, port: int, log: Path) -> None:
    """The life of a replica: what `spikeguard serve` does on a database that is migrated."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(handle, sys.stdout.fileno())
    os.dup2(handle, sys.stderr.fileno())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with listen(HOST, port) as listener:
        serve(settings, open_engine(settings), listener)


@dataclass
class Replica:
    """One server process on a port of its own, which can be killed and started again."""

    settings: Settings
    log: Path
    port: int = field(default_factory=free_port)
    _child: BaseProcess | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Fork it and wait until it is ready."""
        self._child = _FORKING.Process(target=_serve, args=(self.settings, self.port, self.log))
        self._child.start()
        self.await_ready()

    def kill(self) -> None:
        """SIGKILL, at whatever it is doing."""
        if self._child is not None:
            self._child.kill()
            self._child.join()

    def await_ready(self) -> None:
        """Wait until it answers that it can take messages."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            with suppress(OSError):
                urllib.request.urlopen(f"{self.url}/readyz", timeout=5).close()
                return
            time.sleep(0.02)
        raise RuntimeError(f"{self.url} is not ready:\n{self.log.read_text()[-2000:]}")


@dataclass
class Site:
    """Replicas on one database."""

    database: Database
    name: str  # of the database that it alone uses, and of its jobs' folder
    replicas: list[Replica]
    token: str

    @property
    def addresses(self) -> list[str]:
        """Where messages can go."""
        return [replica.url for replica in self.replicas]


def new_site(database: Database, name: str, replicas: int, **settings: float) -> Site:
    """An empty migrated database `name`, whose policy approves rollbacks, and its replicas."""
    url = new_database(database.url, name)
    made = replace(Settings(database_url=url, tick_s=0.2), **settings)  # type: ignore[arg-type]
    token = prepare(url)
    engine = open_engine(made)
    automatic_rollbacks(engine)
    engine.dispose()
    log = database.directory.parent / f"{name}.log"
    return Site(database, name, [Replica(made, log) for _ in range(replicas)], token)


def automatic_rollbacks(engine: sql.Engine) -> None:
    """Let the policy approve rollbacks by itself, as often as it wants to."""
    auto = ApprovalRule(ApprovalMode.AUTO, budget=100, cooldown_s=0.0)
    policy = Policy(approval={**Policy().approval, Verb.ROLLBACK: auto})
    with engine.begin() as connection:
        put_policy(connection, "default", policy_to_mapping(policy), "benchmark")


@contextmanager
def running(site: Site) -> Iterator[Site]:
    """The replicas of `site`, alive; none of them is left at the end."""
    started = []
    try:
        for member in site.replicas:
            started.append(member)
            member.start()
        yield site
    finally:
        for member in started:
            member.kill()


def preload() -> None:
    """Let replicas be forked from a process that has imported what they need."""
    os.environ.update({"OMP_NUM_THREADS": "1"})
    _FORKING.set_forkserver_preload(list(PRELOADED))
