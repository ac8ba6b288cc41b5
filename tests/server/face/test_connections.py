"""What a client may hold of the server before anything of it is answered: real sockets, a real
server process, and its memory."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import psutil
import pytest
import sqlalchemy as sql

from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from tests.programs import serve
from tests.server.conftest import Databases
from tests.server.face.conftest import Live

KEEP_ALIVE_S = 2.0
MORE_MIB = 8 * 2  # that eight attacks may cost together
SETTINGS = {"SPIKEGUARD_KEEP_ALIVE_S": KEEP_ALIVE_S}


@dataclass(frozen=True)
class Served:
    """A server process and its address."""

    process: psutil.Process
    port: int
    live: Live

    def dial(self) -> socket.socket:
        """A new connection."""
        return socket.create_connection(("127.0.0.1", self.port), 20)

    def mib(self) -> float:
        return float(self.process.memory_info().rss / 2**20)


@pytest.fixture(scope="module")
def served(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with databases.lent() as url, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = {name: str(value) for name, value in SETTINGS.items()}
        environment = {**os.environ, **words, "DATABASE_URL": url}
        process = serve(
            port, log=tmp_path_factory.mktemp("served") / "log", environment=environment
        )
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
            process.wait(120)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=120).close()
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")


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


HEADER = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        pytest.param(HEADER, b"".join(b"X-%d: y\r\n" % n for n in range(5000)), id="fields"),
        pytest.param(CHUNKED + b"0\r\nX: ", b"y" * 65_536, id="one trailer"),
        pytest.param(CHUNKED + b"1;", b"y" * 65_536, id="chunk extension"),
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
