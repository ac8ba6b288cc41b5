"""Clients that cost next to nothing: ready-made requests over plain sockets, to loopback only.

Law: every body is made before the clock starts; every client has one connection and sends its next
request when the last one is answered, as an agent does. What is not answered with 200 ends the
measurement: a figure over refused requests would mean nothing.

The servers that are measured: ours and MLflow's, each on a database of one Postgres.

Law: every process is started here and ended here, listens on 127.0.0.1 and is reached by nothing
else. MLflow lives in an environment of its own that is made for the measurement.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import sqlalchemy as sql

from benchmarks.http_server import free_port
from benchmarks.report import quantile
from spikeguard_protocol import (
    AttemptStarted,
    EvenRanges,
    Message,
    Record,
    Role,
    Samples,
    SegmentReason,
    SegmentStarted,
    encode,
)
from spikeguard_protocol.identity import RUN_HEADER
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.cli.embedded_postgres import embedded
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.migrations import migrate

TIMEOUT_S = 60.0


@dataclass
class Curves:
    """Five signals of a calm run, reproducible."""

    random: Random

    def rows(self, steps: Sequence[int]) -> dict[str, tuple[float, ...]]:
        """One column a signal."""
        noise = self.random.gauss
        return {
            "loss": tuple(2.0 + math.exp(-s / 5000) + noise(0, 0.01) for s in steps),
            "grad_norm": tuple(0.4 + noise(0, 0.01) for _ in steps),
            "param_norm": tuple(70 + s * 1e-4 + noise(0, 0.001) for s in steps),
            "lr": (3e-4,) * len(steps),
            "step_time": tuple(0.5 + noise(0, 0.01) for _ in steps),
        }


@dataclass
class Run:
    """One attempt of one run: numbers its messages and its steps."""

    name: str
    attempt: str
    curves: Curves
    sequence: int = 0
    step: int = 0
    project: str = "default"

    def message(self, *records: Record) -> bytes:
        """The next message."""
        self.sequence += 1
        made = Message(self.project, self.name, self.attempt, self.sequence, 0.0, records)
        return encode(made)

    def start(self) -> bytes:
        """The first message of the attempt."""
        verbs = ("rollback", "skip_batches", "scale_lr", "checkpoint_now", "watch", "stop")
        started = AttemptStarted(None, 1, verbs, "benchmark", tokens_per_step=4096)
        return self.message(started, SegmentStarted(0, SegmentReason.START, None, 0))

    def samples(self, count: int) -> Samples:
        """The next `count` steps."""
        steps = tuple(range(self.step + 1, self.step + count + 1))
        self.step += count
        columns: dict[str, tuple[float | None, ...]] = {**self.curves.rows(steps)}
        return Samples(0, steps, columns, EvenRanges(steps[0] - 1, 1, count))


def new_run(name: str, number: int, project: str = "default") -> Run:
    """The run `number` of a benchmark."""
    curves = Curves(Random(number))
    return Run(f"{name}-{number}", f"{number + 1:016x}", curves, project=project)


_RUN = re.compile(rb'"project":"([\w.-]+)","run":"([\w.-]+)"')


def post_of(body: bytes, token: str | None, path: str = "/v1/messages") -> bytes:
    """The bytes of a POST of `body`; of a message, in the name of its run."""
    words = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1"]
    if named := _RUN.search(body):
        words.append(f"{RUN_HEADER}: {named[1].decode()}/{named[2].decode()}")
    words += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    words += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([*words, "", ""]).encode() + body


@dataclass
class Line:
    """One connection to one address."""

    address: tuple[str, int]
    path: str
    token: str | None = None
    _socket: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self._connect()

    def renew(self) -> None:
        """Connect anew: servers hang up on who has been quiet for seconds."""
        self._socket.close()
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self.address, TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, body: bytes) -> bytes:
        """The bytes of a POST of `body`."""
        return post_of(body, self.token, self.path)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send it and read the whole answer: (status, body)."""
        self._socket.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._read()
        head, _, body = answer.partition(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        while len(body) < length:
            body += self._read()
        return int(head.split(b" ", 2)[1]), body

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read(self) -> bytes:
        part = self._socket.recv(1 << 16)
        if not part:
            raise ConnectionError(f"{self.address} hung up")
        return part


@dataclass(frozen=True)
class Load:
    """What one volley of requests showed."""

    seconds: float
    latencies_s: list[float]
    samples: int

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds

    def quantile_ms(self, share: float) -> float:
        """Latency that `share` of the requests stayed below, milliseconds."""
        return 1000 * quantile(self.latencies_s, share)


def volley(lines: Sequence[Line], requests: Sequence[Sequence[bytes]], samples: int) -> Load:
    """Every line sends its own requests, one after the other, all lines at once."""
    for line in lines:
        line.renew()
    with ThreadPoolExecutor(len(lines)) as pool:
        list(pool.map(lambda _: time.sleep(0.01), lines))  # every thread is there
        began = time.perf_counter()
        found = list(pool.map(lambda pair: list(_timed(*pair)), zip(lines, requests, strict=True)))
        seconds = time.perf_counter() - began
    return Load(seconds, [value for each in found for value in each], samples)


def _timed(line: Line, requests: Sequence[bytes]) -> Iterator[float]:
    for request in requests:
        began = time.perf_counter()
        status, body = line.ask(request)
        if status != 200:
            raise RuntimeError(f"answered {status}: {body[:300]!r}")
        yield time.perf_counter() - began


MLFLOW = ("mlflow==3.17.2", "psycopg[binary]==3.3.9")
START_S = 120.0
HOST = "127.0.0.1"
TRUSTED = {"SPIKEGUARD_TRUSTED_PROXIES": HOST}  # of a server behind `balancer`
_BALANCER = Path(__file__).parents[1] / "deploy" / "balancer" / "haproxy.cfg"
_API = "/api/2.0/mlflow"


@contextmanager
def postgres(name: str) -> Iterator[tuple[str, Path]]:
    """An empty one of a benchmark's own: its URL, and a folder that goes with it at the end."""
    directory = Path(tempfile.mkdtemp(prefix=f"spikeguard-{name}-", dir="/tmp"))
    directory.chmod(0o755)  # the account that Postgres runs as must be able to pass
    try:
        with embedded(directory / "postgres") as (url, _):
            yield url, directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def new_database(url: str, name: str) -> str:
    """The URL of a new, empty database of the embedded Postgres at `url`."""
    engine = sql.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sql.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url.replace("/postgres?", f"/{name}?")


def prepare(url: str) -> str:
    """Bring the database to our schema; returns an agent's token."""
    engine = open_engine(Settings(database_url=url))
    migrate(engine)
    with engine.begin() as connection:
        token = issue_token(connection, Grant(Role.AGENT), "benchmark")[0]
    engine.dispose()
    return token


@contextmanager
def spikeguard(url: str, processes: int, log: Path, **settings: str) -> Iterator[list[int]]:
    """`spikeguard serve`, so many processes on one database; yields their ports."""
    environment = {
        **os.environ, "DATABASE_URL": url, "OMP_NUM_THREADS": "1", **settings
    }  # fmt: skip
    ports = [free_port() for _ in range(processes)]
    serve = [sys.executable, "-m", "spikeguard_cli.main", "serve", "--port"]
    with ExitStack() as stack:
        for port in ports:
            ready = f"http://{HOST}:{port}/readyz"
            stack.enter_context(_running([*serve, str(port)], environment, log, ready))
        yield ports


@contextmanager
def balancer(replicas: Sequence[int], log: Path) -> Iterator[int]:
    """The stack's HAProxy before one server or two, by their ports; yields its own."""
    port = free_port()
    names = {f"REPLICA_{'AB'[n]}": f"{HOST}:{each}" for n, each in enumerate(replicas)}
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise RuntimeError("haproxy is not installed: apt-get install haproxy")
    environment = {**os.environ, "BALANCER_BIND": f"{HOST}:{port}", **names}
    words = [program, "-q", "-db", "-f", str(_BALANCER)]
    with _running(words, environment, log, f"http://{HOST}:{port}/readyz"):
        yield port


@contextmanager
def mlflow(url: str, directory: Path) -> Iterator[int]:
    """MLflow's tracking server with its default settings; yields its port."""
    home, port = directory / "mlflow", free_port()
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *MLFLOW], check=True)
    environment = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    store = url.replace("postgresql+psycopg://", "postgresql://")
    words = [python, "-m", "mlflow", "server", "--host", HOST, "--port", str(port)]
    words += ["--backend-store-uri", store, "--default-artifact-root", directory / "artifacts"]
    log = directory / "mlflow.log"
    with _running(list(map(str, words)), environment, log, f"http://{HOST}:{port}/health"):
        yield port


def mlflow_runs(port: int, count: int) -> list[str]:
    """New runs in MLflow, by their ids."""
    made = _post(port, "/experiments/create", {"name": f"ingest-{time.time_ns()}"})
    body = {"experiment_id": made["experiment_id"], "start_time": int(time.time() * 1000)}
    return [_post(port, "/runs/create", body)["run"]["info"]["run_id"] for _ in range(count)]


def log_batch(run: str, steps: Sequence[int], columns: dict[str, tuple[float, ...]]) -> bytes:
    """The body of one log-batch call with the same numbers that we send."""
    now = int(time.time() * 1000)
    metrics = [
        {"key": name, "value": value, "timestamp": now, "step": step}
        for name, column in columns.items()
        for step, value in zip(steps, column, strict=True)
    ]
    return json.dumps({"run_id": run, "metrics": metrics}).encode()


def mlflow_line(port: int) -> Line:
    """A connection to MLflow's log-batch."""
    return Line((HOST, port), f"{_API}/runs/log-batch")


def _post(port: int, call: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://{HOST}:{port}{_API}{call}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@contextmanager
def _running(
    words: Sequence[str], environment: dict[str, str], log: Path, ready: str
) -> Iterator[None]:
    """The process once `ready` is answered, as leader of a group of its own: MLflow's workers end
    with it."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            words, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        _await(ready, process, log)
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{url} does not answer:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)
