"""Clients that cost next to nothing: ready-made requests over plain sockets, to loopback only.

Law: every body is made before the clock starts; every client has one connection and sends its next
request when the last one is answered, as an agent does. What is not answered with 200 ends the
measurement: a figure over refused requests would mean nothing.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random

from benchmarks.report import quantile
from spikeguard_protocol import (
    AttemptStarted,
    EvenRanges,
    Message,
    Record,
    Samples,
    SegmentReason,
    SegmentStarted,
    encode,
)

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


def post_of(body: bytes, token: str | None, path: str = "/v1/messages") -> bytes:
    """The bytes of a POST of `body`."""
    words = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1"]
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
