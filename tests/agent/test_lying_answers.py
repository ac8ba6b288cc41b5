"""Whatever a server answers, the agent stays quiet on the wire, small in memory and cheap."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.http_server import Answer
from spikeguard_protocol import Ack, Message, encode

from .job import BRIEF, FAST, Job
from .wire import Wire, await_that, served

EACH_S = 0.2  # between two messages
LOOKED_S = 1.0
QUIET = replace(FAST, send_interval_s=EACH_S, backoff_s=EACH_S, flush_s=0.2)


def most(since: float) -> float:
    """Messages that may have been sent since then, with jitter."""
    return 2 * (time.monotonic() - since) / EACH_S + 5


HAMMERED: dict[str, Answer] = {
    "nothing is ever stored": (200, {}, encode(Ack(0))),
    "come back at once": (503, {"Retry-After": "0"}, b""),
    "come back at no time": (503, {"Retry-After": "nan"}, b""),
    "send from before the beginning": (409, {}, b'{"expected": -9007199254740993}'),
    "send from nowhere": (409, {}, b'{"expected": [1]}'),
    "brackets without end": (422, {}, b"[" * 100_000),
    "go elsewhere": (307, {"Location": "http://127.0.0.1:9/v1/messages"}, b""),
}


def test_no_answer_makes_the_agent_hammer(tmp_path: Path) -> None:
    """Each to an agent of its own, all at once. What an earlier attempt left waits too, and is sent
    without a pause where it is taken."""
    jobs: dict[str, tuple[Wire, Job]] = {}
    with ExitStack() as serving:
        for what, lie in HAMMERED.items():
            earlier = Job(tmp_path / what)
            earlier.train_to(3)
            earlier.guard.finish()
            wire = serving.enter_context(served(Wire()))
            wire.intercept = partial(answering, lie)
            jobs[what] = wire, Job(tmp_path / what, server=wire.url, settings=QUIET)
            jobs[what][1].train_to(3)
        for wire, _ in jobs.values():
            await_that(lambda: wire.received)  # noqa: B023
        before, began = {what: wire.received for what, (wire, _) in jobs.items()}, time.monotonic()
        time.sleep(LOOKED_S)
        for what, (wire, _) in jobs.items():
            assert wire.received - before[what] <= most(began), what
        for wire, job in jobs.values():
            wire.intercept = lambda _: None
            job.train_to(6)
            await_that(lambda: (0, 6) in wire.column("loss"))  # noqa: B023
            job.guard.finish()


def answering(lie: Answer, _: Message) -> Answer:
    return lie


Reply = Callable[[socket.socket], None]
START = b"HTTP/1.1 200 OK\r\n"


def drip_the_head(one: socket.socket) -> None:
    for byte in START + b"X-Slow: " + b"a" * 10_000:
        one.sendall(bytes([byte]))
        time.sleep(0.05)


def drip_the_body(one: socket.socket) -> None:
    one.sendall(START + b"Content-Length: 100000\r\n\r\n")
    for _ in range(10_000):
        one.sendall(b" ")
        time.sleep(0.05)


def go_on_for_ever(one: socket.socket) -> None:
    while True:
        one.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 500)


def answer_without_end(one: socket.socket) -> None:
    one.sendall(START + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        one.sendall(b"8000\r\n" + b" " * 0x8000 + b"\r\n")


class Replying:
    """Counts the connections of a raw server, and the bytes that it got rid of on each."""

    def __init__(self) -> None:
        self.connections = 0
        self.url = ""


@contextmanager
def replying(reply: Reply) -> Iterator[Replying]:
    """A server that answers each request by `reply`, as long as somebody listens."""
    seen, listener = Replying(), socket.create_server(("127.0.0.1", 0))
    seen.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def serve(one: socket.socket) -> None:
        with suppress(OSError), one:
            one.recv(65536)
            reply(one)

    def accept() -> None:
        with suppress(OSError):
            while True:
                one, _ = listener.accept()
                seen.connections += 1
                threading.Thread(target=serve, args=(one,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(120)


@pytest.mark.parametrize(
    "reply", [drip_the_head, drip_the_body, go_on_for_ever, answer_without_end]
)
def test_an_answer_that_does_not_end_is_given_up(tmp_path: Path, reply: Reply) -> None:
    """The next try goes out on a connection of its own, and the loop trains on."""
    settings = replace(BRIEF, timeout_s=0.2, backoff_s=0.05)
    with replying(reply) as server:
        job = Job(tmp_path, server=server.url, settings=settings)
        job.train_to(3)
        await_that(lambda: server.connections >= 3)
        job.guard.finish()
    assert job.guard.faults["server (back_off)"] >= 2


def test_what_a_server_asks_to_keep_is_bounded(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        wire.protected = tuple(f"checkpoint-{number}" for number in range(5_000))
        job = Job(tmp_path, server=wire.url)
        job.train_to(3)
        await_that(lambda: len(job.guard.state().protected) == 64)
        job.guard.finish()
