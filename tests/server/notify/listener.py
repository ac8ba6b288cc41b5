"""A real HTTP server on a real socket that keeps what it is sent and answers as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.http_server import Answer, Request, answering
from tests.agent.wire import await_that


@dataclass
class Listener:
    """Where requests go. `answers` are given in order; then it is 202."""

    url: str = ""
    received: list[Request] = field(default_factory=list)
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

    def answer(request: Request) -> Answer:
        listener.received.append(request)
        time.sleep(listener.delay_s)
        listener.free.wait()
        if listener.bad and listener.bad.encode() in request.body:
            return 500, {}, b""
        status, headers = listener.answers.pop(0) if listener.answers else (202, {})
        return status, headers, b'{"status":"success"}'

    with answering(answer) as listener.url:
        try:
            yield listener
        finally:
            listener.free.set()
