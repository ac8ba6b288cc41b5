"""A training job that is a pure function of its seed and of the orders that it gets.

It sends through the agent's own outbox and transport, and carries orders out by the agent's own
journal and skips of skipped data. It waits for every answer before it trains on, so that two runs
of one seed differ only where servers answered differently.
Law: it does with an answer what `spikeguard.sender` does with it; it counts, and judges nothing.
Whatever `Mischief` does to a message may happen on a real network, and nothing tells the job of it:
it learns what an agent would learn, an answer or none.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from threading import Barrier, Thread
from typing import Any
from urllib.parse import urlsplit

from benchmarks.ingest_load import post_of
from spikeguard.commands.journal import Begun, Journal
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.transport import Advice, Transport, Verdict
from spikeguard_protocol import (
    Ack,
    AttemptEnded,
    AttemptStarted,
    BatchRange,
    CommandResult,
    Medium,
    Order,
    ResultState,
    Rollback,
    RunId,
    Samples,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
    TargetSaved,
    Verb,
    decode_message,
    encode,
    verb_of,
)

STEPS = 400
STEPS_A_MESSAGE = 5
SAVE_EVERY = 50  # steps
ONSET = 230
LIMIT_BYTES = 2**26
GIVE_UP_S = 300.0
PAUSE_S = 0.02  # before a message that was not taken is sent again
TIMEOUT_S = 20.0  # of one request
BUSY = 0.002  # seconds a step takes, so that sending is not all that happens
SHARE = 0.12  # of the messages, to each kind of mischief
OLD = 8  # messages that may come again
MOST_AGE_S = 45.0  # a clock off by more makes a message history, which is another promise


@dataclass(frozen=True, slots=True)
class Script:
    """What a job will do, whoever runs it."""

    seed: int
    onset: int = ONSET
    lost: frozenset[int] = frozenset()  # messages that the job declares as lost
    steps: int = STEPS

    def loss(self, segment: int, step: int) -> float:
        """Nats: falls calmly; in the first segment it leaves the trend at the onset."""
        noise = Random(f"{self.seed}.{segment}.{step}").gauss(0, 0.01)
        lift = 3.0 if segment == 0 and step >= self.onset else 0.0
        return 2.0 + 2.0 * 0.995**step + noise + lift

    def sample(self, segment: int, step: int, position: int) -> Samples:
        """What was measured at `step`."""
        random = Random(f"{self.seed}.norm.{segment}.{step}")
        signals = {
            "loss": (self.loss(segment, step),),
            "grad_norm": (0.4 + random.gauss(0, 0.01),),
            "step_time": (0.5,),
        }
        return Samples(segment, (step,), signals, (BatchRange(position, position + 1),))


@dataclass
class Tally:
    """What happened to the messages of one job, seen from its side."""

    run: str = ""
    attempt: str = ""
    messages: int = 0  # acknowledged
    refused: Counter[str] = field(default_factory=Counter)  # answers that were none of 200
    acknowledged: dict[tuple[int, int], float] = field(default_factory=dict)  # place -> loss
    executed: list[tuple[str, str, int]] = field(default_factory=list)  # command, verb, at step
    repeated: int = 0  # orders that came again after they had been carried out


Send = Callable[["TrainingJob", Any], Verdict]  # a message, as its release has it


@dataclass
class TrainingJob:
    """One attempt of one run."""

    name: str
    script: Script
    addresses: list[str]
    token: str
    folder: Path
    send: Send
    pace_s: float = BUSY
    number: int = 0  # of the attempts that live at once
    last_word: Barrier = field(default_factory=lambda: Barrier(1))  # all end together
    random: Random = field(default_factory=Random)
    tally: Tally = field(default_factory=Tally)
    step: int = 0
    segment: int = 0
    position: int = 0
    saved: dict[str, TargetSaved] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attempt = f"{self.number:08x}{self.script.seed + 1:08x}"
        self.tally.run, self.tally.attempt = self.name, self.attempt
        run = RunId("default", self.name)
        self.outbox = Outbox(self.folder / self.name, run, self.attempt, LIMIT_BYTES)
        self.journal = Journal(self.folder / f"{self.name}.journal", run)
        self.lines = [Transport(url, self.token, TIMEOUT_S) for url in self.addresses]

    def train(self) -> Tally:
        """From the first step to the last, through whatever comes."""
        try:
            self._begin()
            while self.step < self.script.steps:
                self._train_on()
                self._obey(self._deliver())
            self.last_word.wait(GIVE_UP_S)
            self.outbox.put(AttemptEnded("finished"))
            self._deliver()
        finally:
            self.close()
        return self.tally

    def close(self) -> None:
        """Hang up."""
        self.outbox.close()
        for line in self.lines:
            line.close()

    def line(self) -> Transport:
        """To any of the replicas."""
        return self.random.choice(self.lines)

    def _begin(self) -> None:
        verbs = tuple(verb.value for verb in Verb)
        self.outbox.put(AttemptStarted(None, 1, verbs, "benchmark", tokens_per_step=4096))
        self.outbox.put(SegmentStarted(0, SegmentReason.START, None, 0))
        self._deliver()

    def _train_on(self) -> None:
        for _ in range(STEPS_A_MESSAGE):
            self.position = self.journal.skips.end_of_skip(self.position)
            self.step += 1
            self.outbox.put(self.script.sample(self.segment, self.step, self.position))
            self.position += 1
            if self.step % SAVE_EVERY == 0:
                self._save()
        time.sleep(self.pace_s)

    def _save(self) -> None:
        name = f"step-{self.segment}-{self.step}"
        saved = TargetSaved(name, self.segment, self.step, self.position, Medium.DISK)
        self.saved[name] = saved
        self.outbox.put(saved)

    def _deliver(self) -> Ack:
        """Send until everything is acknowledged; the newest answer."""
        deadline = time.monotonic() + GIVE_UP_S
        while time.monotonic() < deadline:
            message = self.outbox.next_message()
            assert message is not None
            if message.sequence in self.script.lost and message.sequence > 1:
                self.outbox.replace_by_gap(message.sequence, "the script loses it")
                message = self.outbox.next_message()
                assert message is not None
            verdict = self.send(self, message)
            if verdict.advice is Advice.STORED and verdict.ack is not None:
                self._stored(message, verdict.ack)
                if self.outbox.empty:
                    return verdict.ack
            else:
                self._not_stored(message, verdict)
        raise RuntimeError(f"{self.name}: nothing was taken for {GIVE_UP_S:g} s")

    def _stored(self, message: Any, ack: Ack) -> None:
        self.tally.messages += 1
        self.outbox.acknowledge(min(ack.sequence, message.sequence))
        for record in decode_message(message.body).records:
            if isinstance(record, Samples):
                for step, loss in zip(record.steps, record.signals["loss"], strict=True):
                    assert loss is not None
                    self.tally.acknowledged[record.segment, step] = loss

    def _not_stored(self, message: Any, verdict: Verdict) -> None:
        status = verdict.reason[:3]
        if status.isdecimal():
            self.tally.refused[status] += 1
        match verdict.advice:
            case Advice.RESUME_FROM if verdict.expected is not None:
                self.outbox.acknowledge(verdict.expected - 1)
                self.outbox.declare_lost(verdict.expected)
            case Advice.GIVE_UP:
                self.outbox.replace_by_gap(message.sequence, verdict.reason)
            case Advice.ASK_LATER:
                raise RuntimeError(f"{self.name}: {verdict.reason}")
            case _:
                time.sleep(verdict.retry_after_s or PAUSE_S)

    def _obey(self, ack: Ack) -> None:
        for order in ack.orders:
            if order.command in self.journal.results:
                self.tally.repeated += 1
                self.outbox.put(self.journal.results[order.command])
            elif order.attempt == self.attempt:
                self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        verb, at = verb_of(order.action), self.step
        self.tally.executed.append((order.command, verb.value, at))
        self.journal.begin(Begun(order.command, at, getattr(order.action, "skip", None)))
        if isinstance(order.action, Rollback):
            self._roll_back(order.command, order.action)
        result = CommandResult(order.command, ResultState.APPLIED, "done", at)
        self.journal.end(result)
        self.outbox.put(result)

    def _roll_back(self, command: str, rollback: Rollback) -> None:
        target = self.saved[rollback.target]
        parent = SegmentPoint(SegmentId(self.attempt, target.segment), target.step)
        self.segment += 1
        self.step, self.position = target.step, target.position
        reason = SegmentReason.ROLLBACK
        self.outbox.put(SegmentStarted(self.segment, reason, parent, self.position, command))


def plainly(job: TrainingJob, message: Any) -> Verdict:
    """To any replica, as a balancer would."""
    return job.line().send(message)


class Mischief:
    """Tears messages, loses answers, sends twice, out of order and late. One for each job."""

    def __init__(self, done: Counter[str] | None = None) -> None:
        self._sent: list[Any] = []
        self.done = Counter[str]() if done is None else done

    def __call__(self, job: TrainingJob, message: Any) -> Verdict:
        """Do something to `message`, then send it as it should be."""
        tricks = (self._tear, self._lose_the_answer, self._repeat, self._send_all_at_once,
                  self._run_ahead)  # fmt: skip
        for trick in tricks:
            if job.random.random() < SHARE:
                self.done[trick.__name__.strip("_").replace("_", " ")] += 1
                trick(job, message)
        late = replace(message, age_s=message.age_s + job.random.uniform(0, MOST_AGE_S))
        self._sent = [*self._sent[-OLD:], message]
        return job.line().send(late)

    def _tear(self, job: TrainingJob, message: Any) -> None:
        request = _request(job, message)
        _post(job, request[: job.random.randrange(1, len(request))])

    def _lose_the_answer(self, job: TrainingJob, message: Any) -> None:
        _post(job, _request(job, message))

    def _repeat(self, job: TrainingJob, message: Any) -> None:
        del message
        for old in job.random.sample(self._sent, min(2, len(self._sent))):
            job.line().send(old)

    def _send_all_at_once(self, job: TrainingJob, message: Any) -> None:
        requests = [(url, _request(job, message)) for url in job.addresses]
        threads = [Thread(target=_post_to, args=pair, kwargs={"hear": True}) for pair in requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run_ahead(self, job: TrainingJob, message: Any) -> None:
        """By two, so that it leaves a hole even if the one before is being stored just now."""
        verdict = job.line().send(replace(message, sequence=message.sequence + 2))
        assert verdict.ack is None, "a message was taken that left a hole"


def _request(job: TrainingJob, message: Any) -> bytes:
    return post_of(getattr(message, "body", None) or encode(message), job.token)


def _post(job: TrainingJob, data: bytes) -> None:
    _post_to(job.random.choice(job.addresses), data)


def _post_to(url: str, data: bytes, *, hear: bool = False) -> None:
    """Send `data` and hang up, before or after the answer."""
    parts = urlsplit(url)
    with suppress(OSError), socket.create_connection((parts.hostname, parts.port), 10) as line:
        line.sendall(data)
        if hear:
            line.recv(65536)
