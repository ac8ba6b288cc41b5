"""A server on a real socket for one run: it acknowledges, detects as the product does, and orders.

Messages are read and answered by the protocol's own code, samples go through the server's own
monitor in the order in which they come. What is ordered, and when, the row says; nothing waits for
a person, so a row takes seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from benchmarks.http_server import Answer as HttpAnswer, Request, answering
from spikeguard_core.detection.sample import SampleColumns
from spikeguard_core.events import Event
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import (
    Ack,
    Action,
    Answer,
    AttemptStarted,
    CommandResult,
    Message,
    Order,
    Samples,
    SegmentStarted,
    TargetDeleted,
    TargetSaved,
    abilities_from_settings,
    decode_message,
    encode,
)

Kind = TypeVar("Kind")
EXPIRES_S = 120.0


class Server:
    """What one run has told, and what it is to do: `decide` is asked after every message."""

    def __init__(self, decide: Callable[[Server], Action | None]) -> None:
        self.messages: dict[str, list[Message]] = {}  # by attempt, in order
        self.events: list[Event] = []
        self.orders: list[Order] = []
        self.newest_step = 0
        self.url = ""
        self._decide, self._monitor = decide, Monitor()
        self._lock = threading.Lock()

    def records(self, kind: type[Kind]) -> list[Kind]:
        """Every record of `kind`, in the order in which it was stored."""
        stored = (r for messages in self.messages.values() for m in messages for r in m.records)
        return [record for record in stored if isinstance(record, kind)]

    def targets(self) -> list[TargetSaved]:
        """Where the run can go back to."""
        gone = {deleted.name for deleted in self.records(TargetDeleted)}
        return [target for target in self.records(TargetSaved) if target.name not in gone]

    def denies(self, name: str) -> bool:
        """Whether the newest table of the attempt says no to `name`."""
        newest = self.records(AttemptStarted)[-1]
        rows = {each.name: each.answer for each in abilities_from_settings(newest.settings)}
        return rows.get(name) is Answer.NO

    def results(self) -> list[CommandResult]:
        return self.records(CommandResult)

    def losses(self) -> dict[int, float]:
        """Step -> loss as it was told last, which after a rollback is that of the new segment."""
        return {
            step: loss
            for samples in self.records(Samples)
            for step, loss in zip(samples.steps, samples.signals.get("loss", ()), strict=False)
            if loss is not None
        }

    def dropped(self) -> list[int]:
        """The steps whose update was told to have been left out."""
        return [
            step
            for samples in self.records(Samples)
            for name in ("update_dropped", "step_skipped")  # by the agent, by a GradScaler
            for step, flag in zip(samples.steps, samples.signals.get(name, ()), strict=False)
            if flag
        ]

    def take(self, body: bytes) -> bytes:
        """Store one message; the acknowledgement."""
        message = decode_message(body)
        with self._lock:
            stored = self.messages.setdefault(message.attempt, [])
            if message.sequence == len(stored) + 1:
                stored.append(message)
                self._look_at(message)
            if (action := self._decide(self)) is not None:
                command = f"row#1.{len(self.orders) + 1}"
                self.orders.append(Order(command, message.attempt, action, EXPIRES_S, None))
            answered = {result.command for result in self.results()}
            mine = (order for order in self.orders if order.attempt == message.attempt)
            due = tuple(order for order in mine if order.command not in answered)
            return encode(Ack(len(stored), due, self._monitor.attentive, ()))

    def _look_at(self, message: Message) -> None:
        for record in message.records:
            if isinstance(record, SegmentStarted) and record.segment:
                self._monitor = Monitor()  # what was learnt lies in steps that are given up
            if isinstance(record, Samples):
                self.newest_step = record.steps[-1]
                told = SampleColumns(record.steps, record.signals, record.positions)
                self.events += self._monitor.observe(told)


@contextmanager
def serving(decide: Callable[[Server], Action | None]) -> Iterator[Server]:
    """A server for one run while the block lasts."""
    ours = Server(decide)

    def answer(request: Request) -> HttpAnswer:
        posted = request.method == "POST"
        return (200, {}, ours.take(request.body)) if posted else (404, {}, b"")

    with answering(answer) as ours.url:
        yield ours
