"""Ports of this machine, and a small HTTP server on one of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from random import SystemRandom
from typing import Any

HOST = "127.0.0.1"
# Below those that clients get: one that calls a dead server's port from that very port would be
# connected to itself, and hold it.
PORTS = range(20_000, 30_000)


def free_port() -> int:
    """A port of `PORTS` that nobody listens on just now."""
    for port in SystemRandom().sample(PORTS, 50):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            return port
    raise RuntimeError(f"no port of {PORTS} is free")


@contextmanager
def listening(server: ThreadingHTTPServer) -> Iterator[str]:
    """Its address; a thread of its own serves it. Neither it nor a connection to it outlives the
    block: who kept one open is hung up on, as by a server that ends."""
    accepted: list[socket.socket] = []
    get_request = server.get_request

    def noted() -> tuple[socket.socket, Any]:
        connection, address = get_request()
        accepted.append(connection)
        return connection, address

    setattr(server, "get_request", noted)  # noqa: B010
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for connection in accepted:
            with suppress(OSError):  # it was closed before
                connection.shutdown(socket.SHUT_RDWR)
