"""A small faithful server on a real socket: sequence numbers, acknowledgements, orders."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from benchmarks.http_server import Answer, Request, answering
from spikeguard_protocol import (
    Ack,
    Action,
    CommandResult,
    Gap,
    Message,
    Order,
    Samples,
    decode_message,
    encode,
)

Kind = TypeVar("Kind")


def reached(last: int, message: Message) -> int | None:
    """The highest number that is stored once `message` is, after `last`; None if it leaves a hole,
    as the server has it."""
    told = [(gap.first, gap.last) for gap in message.records if isinstance(gap, Gap)]
    for first, end in sorted([*told, (message.sequence, message.sequence)]):
        last = max(last, end) if first <= last + 1 else last
    return last if message.sequence <= last else None


class Wire:
    """What the server stored, and the knobs that tests turn."""

    def __init__(self) -> None:
        self.messages: dict[str, list[Message]] = {}
        self.orders: list[Order] = []
        self.attentive = False
        self.protected: tuple[str, ...] = ()
        self.intercept: Callable[[Message], Answer | None] = lambda _: None
        self.received = 0
        self.bend: Callable[[bytes], bytes] = bytes  # what an acknowledgement becomes on its way
        self.headers: dict[str, str] = {}  # of an acknowledgement
        self.delay_s = 0.0  # of each answer on its way back, which is as old as that when it comes
        self.url = ""
        self._lock = threading.Lock()

    @property
    def attempt(self) -> str:
        """The newest attempt."""
        return list(self.messages)[-1]

    def records(self, kind: type[Kind], attempt: str | None = None) -> list[Kind]:
        """Every stored record of `kind`, in order."""
        with self._lock:
            chosen = [attempt] if attempt else list(self.messages)
            found = [r for a in chosen for m in self.messages[a] for r in m.records]
        return [record for record in found if isinstance(record, kind)]

    def history(self, attempt: str | None = None) -> list[Any]:
        """Every stored record of an attempt, the newest, but samples, in order."""
        found = self.records(object, attempt or self.attempt)
        return [record for record in found if not isinstance(record, Samples)]

    def column(self, signal: str) -> dict[tuple[int, int], float]:
        """(segment, step) -> value, where it was measured."""
        return {
            (s.segment, step): value
            for s in self.records(Samples)
            for step, value in zip(s.steps, s.signals.get(signal, ()), strict=False)
            if value is not None
        }

    def order(self, action: Action, number: int = 1, **changes: Any) -> str:
        """Deliver an order for the newest attempt from the next answer on."""
        command = f"test#1.{number}"
        details = {"expires_in_s": 600.0, "expires_at_step": None, **changes}
        if (attempt := details.pop("attempt", None)) is None:
            await_that(lambda: self.messages)  # a loaded machine sends its first one late
            attempt = self.attempt
        self.orders.append(Order(command, attempt, action, **details))
        return command

    def result(self, command: str) -> CommandResult | None:
        return next((r for r in self.records(CommandResult) if r.command == command), None)

    def answer(self, body: bytes) -> Answer:
        message = decode_message(body)
        with self._lock:
            self.received += 1
            special = self.intercept(message)
            if special is not None:
                return special
            stored = self.messages.setdefault(message.attempt, [])
            last = 0
            for each in stored:
                last = reached(last, each) or last
            now = reached(last, message)
            if now is None:
                error = {"code": "sequence_gap", "field": None, "message": "", "remedy": ""}
                plain = {"error": error, "expected": last + 1}
                return 409, {}, json.dumps(plain).encode()
            if now > last:
                stored.append(message)
            return 200, self.headers, self.bend(encode(self._ack(message.attempt, now)))

    def _ack(self, attempt: str, sequence: int) -> Ack:
        stored = [r for m in self.messages[attempt] for r in m.records]
        known = {r.command for r in stored if isinstance(r, CommandResult)}
        waiting = tuple(o for o in self.orders if o.command not in known)
        return Ack(sequence, waiting, self.attentive, self.protected)


def await_that(condition: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    """Wait until `condition()` is true; returns its value. Who waits long looks less often."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.005
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.1)
    return value


def await_checkpoint(guard: Any) -> None:
    """Until what is being written is on disk, however busy that is: a checkpoint that is due
    meanwhile is left out, and counted."""
    await_that(lambda: not guard.state().saving)


@contextmanager
def served(wire: Wire, port: int = 0) -> Iterator[Wire]:
    """`wire` behind a real HTTP server."""

    def answer(request: Request) -> Answer:
        found = wire.answer(request.body)
        time.sleep(wire.delay_s)
        return found

    with answering(answer, port) as wire.url:
        yield wire
