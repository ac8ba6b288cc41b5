"""What is disturbed: replicas as processes of their own, on one real Postgres that can be killed.

Law: every process is started here and ended here, by its own id; every replica listens on
127.0.0.1. A replica is forked from a process that has read the code already: so it starts in a
tenth of a second, and is killed with a signal like any other.

What stands in the database after it all, and in what it differs from an undisturbed run.

Law: read with plain SQL from the tables themselves; nothing of the server's own reading is trusted
here. Times and ids of rows are left out, run names become RUN: all the rest has to agree.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from benchmarks.faults_job import Tally
from benchmarks.http_server import free_port
from benchmarks.ingest_load import HOST, new_database, prepare
from spikeguard_core.policy.settings import (
    ApprovalMode,
    ApprovalRule,
    Policy,
    policy_to_mapping,
)
from spikeguard_protocol import RunId, Verb
from spikeguard_server.access.grants import put_policy
from spikeguard_server.cli.embedded_postgres import embedded
from spikeguard_server.cli.serve import listen, serve
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.tables.core import run_key

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
        self.url, _ = self._starter.submit(self._running.enter_context, server).result()

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


Row = tuple[Any, ...]
PLACES = {
    "decisions": """select incident, number, step, kind, confidence, reason from incident_revisions
        where run_id = :run order by incident, number""",
    "incidents": """select number, state, kind, onset_step, outcome, record::text
        from incidents where run_id = :run order by number""",
    "commands": """select incident, number, verb, arguments, state, revision, reason, automatic,
        decided_by, decided_step, applied_step, result, judgement from commands
        where run_id = :run order by incident, number""",
    # that it fell silent while nothing answered, and came back, is nothing of an undisturbed run;
    # what a post-mortem asks for is written when its turn comes, maybe after this was read
    "audit": """select actor, action, subject, before, after, reason from audit
        where run_id = :run and action not in
        ('silent', 'live', 'attempt.lost', 'attempt.found', 'follow_up') order by number""",
    "segments": """select attempt, segment, reason, parent_step, position, first_step, last_step
        from segments where run_id = :run order by attempt, segment""",
    "evidence": """select incident, attempt, segment, step, loss, grad_norm from incident_samples
        where run_id = :run order by incident, attempt, segment, step""",
}
_SAMPLES = sql.text("select segment, step, loss from samples where run_id = :run")
_NUMBERS = sql.text("select number from audit where run_id = :run order by number")


@dataclass(frozen=True)
class Facts:
    """What the database says of one run."""

    samples: tuple[Row, ...]  # segment, step, loss
    tables: dict[str, tuple[Row, ...]]
    audit_numbers: tuple[int, ...]


@dataclass
class Verdict:
    """What a disturbance did to the promises; all of it should be nothing."""

    runs: int = 0
    acknowledged: int = 0  # samples
    missing: int = 0  # acknowledged samples that are not stored as they were sent
    twice: int = 0  # samples that are stored twice
    foreign: int = 0  # stored samples that were never acknowledged
    differing: Counter[str] = field(default_factory=Counter)  # table -> runs that differ
    commands: int = 0  # carried out
    commands_twice: int = 0
    audit_holes: int = 0  # runs whose audit skips a number
    examples: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        """Whether every promise was."""
        counts = (self.missing, self.twice, self.foreign, self.commands_twice, self.audit_holes)
        return not any(counts) and not self.differing


def read_facts(connection: sql.Connection, name: str) -> Facts:
    """Everything about run `name`."""
    key = {"run": run_key(RunId("default", name))}
    tables = {
        place: tuple(_plain(row, name) for row in connection.execute(sql.text(statement), key))
        for place, statement in PLACES.items()
    }
    samples = tuple(tuple(row) for row in connection.execute(_SAMPLES, key))
    return Facts(samples, tables, tuple(connection.execute(_NUMBERS, key).scalars()))


def _plain(row: sql.Row[Any], name: str) -> Row:
    return tuple(str(value).replace(name, "RUN") for value in row)


def judge_run(verdict: Verdict, facts: Facts, twin: Facts, tally: Tally, name: str) -> None:
    """Add what became of run `name` to `verdict`."""
    _judge_samples(verdict, facts.samples, tally)
    verdict.commands += len(tally.executed)
    verdict.commands_twice += len(tally.executed) - len({c for c, _, _ in tally.executed})
    numbers = facts.audit_numbers
    verdict.audit_holes += numbers != tuple(range(1, len(numbers) + 1))
    for place, rows in facts.tables.items():
        if rows != twin.tables[place]:
            verdict.differing[place] += 1
            verdict.examples.append(f"{name}: {place}: {_first_difference(rows, twin, place)}")


def _judge_samples(verdict: Verdict, samples: tuple[Row, ...], tally: Tally) -> None:
    verdict.runs += 1
    verdict.acknowledged += len(tally.acknowledged)
    stored = {(segment, step): loss for segment, step, loss in samples}
    verdict.twice += len(samples) - len(stored)
    verdict.missing += sum(stored.get(at) != loss for at, loss in tally.acknowledged.items())
    verdict.foreign += len(stored.keys() - tally.acknowledged.keys())


def _first_difference(rows: tuple[Row, ...], twin: Facts, place: str) -> str:
    theirs = twin.tables[place]
    for number, (mine, other) in enumerate(zip(rows, theirs, strict=False)):
        if mine != other:
            return f"row {number}: {mine} instead of {other}"
    more, less = Counter(rows) - Counter(theirs), Counter(theirs) - Counter(rows)
    return f"{list(more)} besides" if more else f"without {list(less)}"


_OF_ATTEMPT = sql.text(
    "select segment, step, loss from samples s join attempts a "
    "on a.run_id = s.run_id and a.number = s.attempt where s.run_id = :run and a.id = :attempt"
)


def read_attempt(connection: sql.Connection, name: str, attempt: str) -> tuple[Row, ...]:
    """The samples of one attempt: segment, step, loss."""
    which = {"run": run_key(RunId("default", name)), "attempt": attempt}
    return tuple(tuple(row) for row in connection.execute(_OF_ATTEMPT, which))


def judge_attempt(verdict: Verdict, samples: tuple[Row, ...], tally: Tally) -> None:
    """Add what became of an attempt that was never alone: all its data, and no order."""
    _judge_samples(verdict, samples, tally)
    verdict.differing["orders to one of two"] += bool(tally.executed)
    verdict.differing += Counter()
