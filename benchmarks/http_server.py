"""A small HTTP server on a port of this machine; what it answers is a function of the request.
And a browser at a staged service.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import SystemRandom
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from spikeguard_trainer.stage.service import Service

HOST = "127.0.0.1"
# Below those that clients get: one that calls a dead server's port from that very port would be
# connected to itself, and hold it.
PORTS = range(20_000, 30_000)
Answer = tuple[int, Mapping[str, str], bytes]  # status, headers, body


class Request(NamedTuple):
    """A request as it came."""

    method: str
    path: str  # with its query
    headers: Message  # found in whatever case they are written
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body or b"{}")


class _Server(ThreadingHTTPServer):
    """Hangs up at its end on whoever kept a connection open, as a server that dies does."""

    daemon_threads = True

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._accepted: list[socket.socket] = []
        super().__init__(("127.0.0.1", port), handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._accepted.append(connection)
        return connection, address

    def server_close(self) -> None:
        super().server_close()
        for connection in self._accepted:
            with suppress(OSError):  # it was closed before
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # of a client that was killed
            super().handle_error(request, client_address)


@contextmanager
def answering(answer: Callable[[Request], Answer], port: int = 0) -> Iterator[str]:
    """Its address. Neither it nor a connection to it outlives the block; `port` 0: a free one."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, content = answer(Request(self.command, self.path, self.headers, body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = _Server(port, Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    """A port of `PORTS` that nobody listens on just now."""
    for port in SystemRandom().sample(PORTS, 50):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            return port
    raise RuntimeError(f"no port of {PORTS} is free")


def page(service: Service, path: str) -> str:
    """A page of the server as the signed-in person's browser gets it."""
    with httpx.Client(base_url=service.place.server, timeout=15) as browser:
        link = urlsplit(service.sign_in_link())
        browser.post(f"{link.path}?{link.query}")
        return browser.get(path).text
