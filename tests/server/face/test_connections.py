"""What a client may hold of the server before anything of it is answered: real sockets, a real
server process, and its memory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import httpx
import psutil
import pytest
import sqlalchemy as sql

from spikeguard_protocol import AttemptStarted, Role, encode
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.http.connections import MAX_PIPELINED, TAKE_S
from spikeguard_server.settings import Settings
from tests.server.conftest import Databases
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import serving

MOST, MOST_PER_ADDRESS = 40, 15
HEADER_S, BODY_S, KEEP_ALIVE_S = 1.0, 1.5, 2.0
STRANGER = "127.0.0.2"  # 127.0.0.1 may be a proxy of many
MORE_MIB = 24  # that an attack may cost
SETTINGS = {
    "SPIKEGUARD_MAX_CONNECTIONS": MOST,
    "SPIKEGUARD_MAX_CONNECTIONS_PER_ADDRESS": MOST_PER_ADDRESS,
    "SPIKEGUARD_HEADER_TIMEOUT_S": HEADER_S,
    "SPIKEGUARD_BODY_TIMEOUT_S": BODY_S,
    "SPIKEGUARD_KEEP_ALIVE_S": KEEP_ALIVE_S,
    "SPIKEGUARD_STREAM_SIGN_S": 0.3,
}


@dataclass(frozen=True)
class Served:
    """A server process and its address."""

    process: psutil.Process
    port: int
    live: Live

    def dial(self, host: str = "127.0.0.1") -> socket.socket:
        """A new connection from `host`."""
        return socket.create_connection(("127.0.0.1", self.port), 20, (host, 0))

    def mib(self) -> float:
        return float(self.process.memory_info().rss / 2**20)

    def closed(self, reason: str) -> float:
        """How many connections it says it has closed for `reason`."""
        with self.live.client(Role.METRICS) as client:
            lines = client.get("/metrics").text.splitlines()
        name = f'spikeguard_connections_closed_total{{reason="{reason}"}} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def served(databases: Databases) -> Iterator[Served]:
    with databases.lent() as url, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = {name: str(value) for name, value in SETTINGS.items()}
        command = [sys.executable, "-m", "spikeguard_cli.main", "serve", "--port", str(port)]
        process = subprocess.Popen(command, env={**os.environ, **words, "DATABASE_URL": url})
        try:
            _wait(port, process)
            engine = sql.create_engine(url)
            with engine.begin() as connection:
                tokens = {role: issue_token(connection, Grant(role), "test")[0] for role in Role}
            live = Live(f"http://127.0.0.1:{port}", engine, tokens)
            yield Served(psutil.Process(process.pid), port, live)
            engine.dispose()
        finally:
            process.terminate()
            process.wait(20)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=30).close()
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    found = b""
    try:
        while part := connection.recv(65_536):
            found += part
    except ConnectionError:
        pass
    return found


def flood(connection: socket.socket, piece: bytes, most: int) -> int:
    """Send `piece` again and again; how many bytes went out before the server hung up."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    except OSError:
        pass
    return sent


def ask(connection: socket.socket) -> bytes:
    """One whole call, which keeps the connection."""
    connection.sendall(HEADER + b"\r\n")
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(2000)
        assert part, answer
        answer += part
    return answer


UNREAD = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HEADER = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        pytest.param(HEADER, b"".join(b"X-%d: y\r\n" % n for n in range(5000)), id="fields"),
        pytest.param(HEADER + b"X: ", b"y" * 65_536, id="one field"),
        pytest.param(b"GET /", b"y" * 65_536, id="path"),
        pytest.param(CHUNKED + b"0\r\n", b"X: y\r\n" * 10_000, id="trailers"),
        pytest.param(CHUNKED + b"0\r\nX: ", b"y" * 65_536, id="one trailer"),
        pytest.param(CHUNKED + b"1;", b"y" * 65_536, id="chunk extension"),
        pytest.param(b"", HEADER * 5000, id="no end"),
    ],
)
def test_an_endless_header_costs_the_server_no_memory(
    served: Served, beginning: bytes, piece: bytes
) -> None:
    """Eight of them at once, each of up to 64 MB."""
    before, highest = served.mib(), 0.0

    def attack() -> int:
        with served.dial() as connection:
            connection.sendall(beginning)
            return flood(connection, piece, 64 * 10**6)

    with ThreadPoolExecutor(8) as pool:
        attacks = [pool.submit(attack) for _ in range(8)]
        while not all(done.done() for done in attacks):
            highest = max(highest, served.mib())
            time.sleep(0.02)
    assert max(done.result() for done in attacks) < 64 * 10**6
    assert max(highest, served.mib()) - before < MORE_MIB


def test_a_body_in_chunks_of_a_byte_is_not_read_on(served: Served) -> None:
    """Each chunk is work for the thread that answers everybody: at 22 MB/s it did nothing else."""
    begun, sent = time.monotonic(), 0
    with served.dial(STRANGER) as connection, suppress(ConnectionError, TimeoutError):
        connection.settimeout(20)
        connection.sendall(CHUNKED)
        while sent < 64 * 2**20:
            sent += connection.send(b"1\r\ny\r\n" * 4_000)
    assert sent < 12 * 2**20
    assert time.monotonic() - begun < 10
    with served.live.client(Role.VIEWER) as client:
        assert client.get("/v1/runs").status_code == 200


def test_a_body_in_small_chunks_is_taken(served: Served) -> None:
    """As a program that writes line by line sends it."""
    said = {"token": served.live.tokens[Role.OPERATOR], "name": "Ada Lovelace"}
    lines = [b" " * 40] * 1_500 + [json.dumps(said).encode()]
    kind = {"Content-Type": "application/json"}
    with served.live.client() as client:
        answer = client.post("/v1/sessions", content=iter(lines), headers=kind)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(b"X: " + b"y" * 5_000_000 + b"\r\n", id="bytes"),
        pytest.param(b"X: y\r\n" * 129, id="number"),
    ],
)
def test_who_sends_too_large_a_header_is_told_the_limit(served: Served, fields: bytes) -> None:
    with served.dial() as connection:
        flood(connection, HEADER + fields + b"\r\n", 1)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"limit": 65536' in answer


def test_a_header_within_the_limits_is_taken(served: Served) -> None:
    with served.dial() as connection:
        connection.sendall(HEADER + b"X: " + b"y" * 60_000 + b"\r\n" + b"Y: z\r\n" * 120 + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("sent", "answer", "reason"),
    [
        pytest.param(b"", b"", "idle", id="nothing"),
        pytest.param(b"\r\n", b"HTTP/1.1 408 ", "header_time", id="an empty line"),
        pytest.param(HEADER, b"HTTP/1.1 408 ", "header_time", id="half a header"),
        pytest.param(
            b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
            b"HTTP/1.1 408 ", "body_time", id="half a body",
        ),
    ],
)  # fmt: skip
def test_who_does_not_send_on_is_hung_up_on(
    served: Served, sent: bytes, answer: bytes, reason: str
) -> None:
    closed = served.closed(reason)
    began = time.monotonic()
    with served.dial() as connection:
        connection.sendall(sent)
        assert read_all(connection).startswith(answer)
    assert time.monotonic() - began < 10
    assert served.closed(reason) == closed + 1


def test_who_trickles_a_header_is_hung_up_on(served: Served) -> None:
    """Every byte in time, and the whole not: the second request of a connection, too."""
    with served.dial() as connection:
        assert ask(connection).startswith(b"HTTP/1.1 200 ")
        began = time.monotonic()
        while flood(connection, b"x", 1) and time.monotonic() - began < 20:
            time.sleep(0.1)
        assert HEADER_S <= time.monotonic() - began < 15


def test_who_does_not_take_an_answer_is_hung_up_on(served: Served) -> None:
    """Answers that are larger than what the kernel keeps for their reader."""
    closed = served.closed("unread")
    call = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    with ExitStack() as held:
        connection = held.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        until = time.monotonic() + 20
        connection.sendall(call * MAX_PIPELINED)
        while served.closed("unread") == closed:
            assert time.monotonic() < until
            time.sleep(0.1)


def leave_unread(port: int, held: ExitStack, calls: bytes = UNREAD) -> socket.socket:
    """A connection that asks over a network of small segments, and takes nothing."""
    connection = held.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", port))
    connection.sendall(calls)
    return connection


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def test_answers_that_are_left_unread_hold_a_bounded_memory(databases: Databases) -> None:
    """Whose answer has waited longest is hung up on; who reads late, and not too late, has all."""
    with (
        databases.lent() as database, ExitStack() as held,
        serving(Settings(database_url=database, max_unread_bytes=2**20)) as url,
    ):  # fmt: skip
        whole = len(httpx.get(f"{url}/openapi.json", timeout=60).content)
        waiting = [leave_unread(port_of(url), held) for _ in range(12 * 2**20 // (4 * whole))]
        time.sleep(4 * TAKE_S)
        assert len(read_all(waiting[0])) < whole
        assert len(read_all(waiting[-1])) > whole


def test_no_second_call_is_taken_while_the_answer_to_the_first_is_unread(served: Served) -> None:
    job = Job(served.live, "behind-an-answer")
    body = encode(job.message(AttemptStarted(None, 1, (), "test")))
    head = f"Authorization: Bearer {served.live.tokens[Role.AGENT]}\r\nContent-Length: {len(body)}"
    second = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + body
    with ExitStack() as held, served.live.client(Role.VIEWER) as viewer:
        first = UNREAD.replace(b"Connection: close\r\n", b"")
        connection = leave_unread(served.port, held, first + second)
        time.sleep(BODY_S / 2)
        assert viewer.get(job.path).status_code == 404
        answer = b""
        while b'"sequence":1,' not in answer:
            answer = answer[-100:] + connection.recv(65_536)
        assert viewer.get(job.path).status_code == 200


def test_who_needs_no_token_has_nothing_made_anew(served: Served) -> None:
    """Documents of 300 kB, each a tenth of a second of a core to write."""
    for page in ("/openapi.json", "/docs"):
        assert httpx.get(f"{served.live.url}{page}", timeout=60).status_code == 200
    began = sum(served.process.cpu_times()[:2])
    with served.live.client() as nobody:
        for _ in range(60):
            assert nobody.get("/openapi.json").status_code == nobody.get("/docs").status_code
    assert sum(served.process.cpu_times()[:2]) - began < 0.7


def test_health_checks_and_agents_get_in_while_strangers_hold_every_connection(
    served: Served,
) -> None:
    """The connection that rested longest makes room."""
    with ExitStack() as held:
        idle = [held.enter_context(served.dial()) for _ in range(3 * MOST)]
        assert httpx.get(f"{served.live.url}/healthz", timeout=30).status_code == 200
        job = Job(served.live, "among-strangers").start()
        job.train(5)
        assert served.process.num_fds() < MOST + 60
        assert read_all(idle[0]) == b""


def test_one_address_holds_no_more_than_its_share(served: Served) -> None:
    with ExitStack() as held:
        for _ in range(MOST_PER_ADDRESS):
            held.enter_context(served.dial(STRANGER))
        with served.dial(STRANGER) as connection:
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"Retry-After: " in answer
        for _ in range(MOST_PER_ADDRESS + 1):  # a proxy holds those of many
            held.enter_context(served.dial())
        assert httpx.get(f"{served.live.url}/healthz", timeout=30).status_code == 200
    with served.dial(STRANGER) as connection:
        assert ask(connection).startswith(b"HTTP/1.1 200 ")


def test_who_waits_for_an_answer_is_not_hung_up_on(served: Served) -> None:
    """A long-poll, and a client that keeps its connection between calls: both for longer than any
    bound on what a client sends."""
    lasts_s = max(HEADER_S, BODY_S, KEEP_ALIVE_S) + 1.5
    job = Job(served.live, "patient").start()
    with served.live.client(Role.AGENT) as agent, ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        poll = pool.submit(agent.get, f"{job.path}/orders", params={"wait_s": lasts_s})
        with served.dial() as connection:
            while time.monotonic() - began < lasts_s:
                assert ask(connection).startswith(b"HTTP/1.1 200 ")
                time.sleep(0.2)
        assert poll.result(20).status_code == 200
