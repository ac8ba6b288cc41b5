"""What a client may hold of the server before anything of it is answered: real sockets, a real
server process, and its memory."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil
import pytest

from tests.programs import running
from tests.server.conftest import Databases

MORE_MIB = 8 * 2  # that eight attacks may cost together


@dataclass(frozen=True)
class Served:
    """A server process and its address."""

    process: psutil.Process
    port: int

    def dial(self) -> socket.socket:
        """A new connection."""
        return socket.create_connection(("127.0.0.1", self.port), 20)

    def mib(self) -> float:
        return float(self.process.memory_info().rss / 2**20)


@pytest.fixture(scope="module")
def served(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("served") / "log"
    with databases.lent() as database:
        environment = {**os.environ, "SPIKEGUARD_KEEP_ALIVE_S": "2", "DATABASE_URL": database}
        with running(log, environment) as (url, process):
            yield Served(psutil.Process(process.pid), int(url.rpartition(":")[2]))


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
