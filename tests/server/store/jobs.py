"""A training job as the server sees it: numbered messages of a made-up, reproducible run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import sqlalchemy as sql

from spikeguard_protocol import (
    Ack,
    AttemptStarted,
    BatchRange,
    CommandResult,
    IncidentId,
    Medium,
    Message,
    Record,
    ResultState,
    RunId,
    Samples,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
    TargetSaved,
    Verb,
)
from spikeguard_server.ingest.detection import Monitors
from spikeguard_server.ingest.receive import Received, receive
from spikeguard_server.jobs.postmortems import draw_postmortem
from spikeguard_server.report.render import ReportFormat
from spikeguard_server.settings import Settings
from spikeguard_server.store.incidents import read_incident

FIRST = "00000000000000a1"
SECOND = "00000000000000b2"
Curve = Callable[[int], float]


def healthy(step: int) -> float:
    """A loss that falls with a little reproducible noise, nats."""
    return 5.0 - 3.0 * min(step, 4000) / 4000 + 0.01 * random.Random(step).gauss(0, 1)


def spiking(onset: int, height: float = 3.0, length: int = 10**9) -> Curve:
    """The same, `height` above trend from `onset` on for `length` steps."""
    return lambda step: healthy(step) + (height if onset <= step < onset + length else 0.0)


def columns(steps: Sequence[int], curve: Curve, segment: int = 0, shift: int = 0) -> Samples:
    """Samples of `steps`; the position of step s is s - 1 + shift."""
    return Samples(
        segment,
        tuple(steps),
        {
            "loss": tuple(curve(s) for s in steps),
            "grad_norm": tuple(1.0 + 0.05 * random.Random(-s).gauss(0, 1) for s in steps),
            "step_time": tuple(0.5 for _ in steps),
        },
        tuple(BatchRange(s - 1 + shift, s + shift) for s in steps),
    )


@dataclass
class Job:
    """Sends what an agent would send."""

    engine: sql.Engine
    attempt: str = FIRST
    run: str = "gpt"
    sequence: int = 0
    age_s: float = 0.1
    monitors: Monitors | None = field(default_factory=Monitors)
    settings: Settings = field(default_factory=Settings)
    now: datetime | None = None

    def message(self, *records: Record, sequence: int | None = None) -> Message:
        """The next message, or the one of that number."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        return Message("default", self.run, self.attempt, sequence, self.age_s, records)

    def post(self, message: Message) -> Ack:
        monitors = self.monitors or Monitors()
        return receive(self.engine, Received(message, self.settings, monitors, now=self.now))

    def send(self, *records: Record) -> Ack:
        return self.post(self.message(*records))

    def start(self, parent: SegmentPoint | None = None) -> Self:
        self.send(*self.beginning(parent))
        return self

    def beginning(self, parent: SegmentPoint | None = None) -> tuple[Record, ...]:
        """The records that an attempt begins with."""
        reason = SegmentReason.START if parent is None else SegmentReason.RESUME
        started = AttemptStarted(parent, 1, tuple(Verb), "0.1", tokens_per_step=4096)
        position = 0 if parent is None else parent.step
        return started, SegmentStarted(0, reason, parent, position)

    def train(
        self,
        first: int,
        last: int,
        curve: Curve = healthy,
        *,
        segment: int = 0,
        batch: int = 20,
        save_every: int = 100,
        shift: int = 0,
    ) -> Ack:
        """Steps [first, last], `batch` a message, with checkpoints."""
        ack = None
        for begin in range(first, last + 1, batch):
            steps = range(begin, min(begin + batch, last + 1))
            saved = [saved_at(s, segment, shift) for s in steps if s % save_every == 0]
            ack = self.send(columns(steps, curve, segment, shift), *saved)
        assert ack is not None
        return ack

    def report(self, command: str, state: ResultState, step: int, reason: str = "done") -> Ack:
        return self.send(CommandResult(command, state, reason, step))

    def roll_back(
        self, command: str, target_step: int, at_step: int, segment: int = 1, position: int = 0
    ) -> Ack:
        """Carry out a rollback: a new segment and its result."""
        parent = SegmentPoint(SegmentId(self.attempt, segment - 1), target_step)
        return self.send(
            SegmentStarted(segment, SegmentReason.ROLLBACK, parent, position, command),
            CommandResult(command, ResultState.APPLIED, "rolled back", at_step),
        )


def saved_at(step: int, segment: int = 0, shift: int = 0) -> TargetSaved:
    return TargetSaved(f"step-{step}", segment, step, step + shift, Medium.DISK)


def rows(engine: sql.Engine, statement: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sql.text(statement))]


def execute(engine: sql.Engine, *statements: str) -> None:
    """In one transaction."""
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sql.text(statement))


def value(engine: sql.Engine, statement: str) -> Any:
    return rows(engine, statement)[0][0]


def drawn(engine: sql.Engine, form: str = "md", incident: int = 1) -> bytes:
    """The post-mortem of a closed incident."""
    run = RunId("default", "gpt")
    with engine.connect() as connection:
        at = read_incident(connection, IncidentId(run, incident)).reported_at
    assert at is not None
    return draw_postmortem(engine, run, incident, ReportFormat(form), at)


@contextmanager
def asked(engine: sql.Engine, words: str) -> Iterator[list[str]]:
    """The statements with `words` in them that SQLAlchemy sends meanwhile."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if words in statement:
            found.append(statement)

    sql.event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sql.event.remove(engine, "before_cursor_execute", note)
