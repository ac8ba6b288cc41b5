"""A real HTTP server on a real socket that keeps what it is sent and answers as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.agent.wire import await_that


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Listener:
    """Where requests go. `answers` are given in order; then it is 202."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    bad: str = ""  # in a body: answered 500 whatever `answers` says
    delay_s: float = 0.0
    free: threading.Event = field(default_factory=threading.Event)  # unset: nothing is answered

    def __post_init__(self) -> None:
        self.free.set()

    def wait_for(self, seen: Callable[[list[Any]], bool]) -> None:
        """Until what came satisfies `seen`."""
        await_that(lambda: seen([request.json() for request in self.received]))

    def paths(self) -> list[str]:
        return [request.path for request in self.received]


@contextmanager
def listening() -> Iterator[Listener]:
    """A listener while the block runs."""
    listener = Listener()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            listener.received.append(Received(self.path, dict(self.headers), body, self.command))
            time.sleep(listener.delay_s)
            listener.free.wait()
            if listener.bad and listener.bad.encode() in body:
                status, headers = 500, dict[str, str]()
            else:
                status, headers = listener.answers.pop(0) if listener.answers else (202, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b'{"status":"success"}')

        do_PUT = do_POST

        def log_message(self, *arguments: Any) -> None:
            del arguments

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    listener.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield listener
    finally:
        listener.free.set()
        server.shutdown()
        thread.join()
        server.server_close()
