"""Starts a row's job as real processes, again where its exit status asks for it, and reads what
its ranks saw.

Invariants: a rank that dies takes the others with it, as under a launcher. Everything that was
started is ended.

A server on a real socket for one run: it acknowledges, detects as the product does, and orders.

Messages are read and answered by the protocol's own code, samples go through the server's own
monitor in the order in which they come. What is ordered, and when, the row says; nothing waits for
a person, so a row takes seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.http_server import Answer as HttpAnswer, Request, answering
from benchmarks.real_jobs_probe import REFUSED
from benchmarks.real_jobs_text import Plan
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
from spikeguard_trainer.stage.processes import Children

ROOT = Path(__file__).parent.parent
SOURCES = (ROOT, *(ROOT / part for part in ("agent", "server", "trainer")))
START_AGAIN = (75, 76)  # exit statuses with which an attempt asks for a new start
GRACE_S = 15.0  # for the other ranks, once one has ended


@dataclass(frozen=True, slots=True)
class Command:
    """How one rank of a job is started."""

    words: Sequence[str]
    ranks: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None  # to start in
    grouped: bool = False  # a process group even of one rank
    alike: bool = False  # its ranks have the same gradients, as their reduction made them


@dataclass(slots=True)
class Run:
    """What became of one run: all its starts."""

    server: Server
    ranks: list[list[dict[str, Any]]]  # the lines of each, in order
    statuses: list[int]  # of each start, the worst of its ranks
    log: Path

    @property
    def refused(self) -> str:
        """Why `attach` refused; empty if it did not."""
        return next((r["refused"] for lines in self.ranks for r in lines if "refused" in r), "")

    @property
    def ended_well(self) -> bool:
        return bool(self.statuses) and self.statuses[-1] == 0

    def steps(self, rank: int = 0) -> dict[int, dict[str, Any]]:
        """What each step was made of, the newest line of each."""
        return {line["step"]: line for line in self.ranks[rank] if "step" in line}

    def faults(self) -> dict[str, int]:
        """The guard's own failures, over all ranks and starts."""
        found: dict[str, int] = {}
        for line in (line for lines in self.ranks for line in lines):
            for place, count in line.get("faults", {}).items():
                found[place] = found.get(place, 0) + count
        return found

    def digests(self, key: str = "finished") -> list[str]:
        """Each rank's last digest of a line that has `key`."""
        found = [[x["digest"] for x in lines if "digest" in x and key in x] for lines in self.ranks]
        return [each[-1] if each else "" for each in found]


def run_job(
    command: Command,
    plan: Plan,
    folder: Path,
    decide: Callable[[Server], Action | None] = lambda _: None,
    limit_s: float = 1_200.0,
    starts: int = 4,
) -> Run:
    """Start it until it has ended well, refused, or failed."""
    shutil.rmtree(folder, ignore_errors=True)
    record = folder / "record"
    record.mkdir(parents=True)
    plan = replace(plan, out=str(folder / "out"), record=str(record))
    statuses: list[int] = []
    until = time.monotonic() + limit_s
    with serving(decide) as server:
        while len(statuses) < starts:
            statuses.append(_start(command, plan, folder, server.url, until))
            killed = plan.kill is not None and len(statuses) == 1
            if statuses[-1] not in START_AGAIN and not killed:
                break
    return Run(server, read_ranks(record, command.ranks), statuses, folder / "job.log")


def read_ranks(record: Path, ranks: int) -> list[list[dict[str, Any]]]:
    """The lines that each rank wrote."""
    files = [record / f"rank-{rank}.jsonl" for rank in range(ranks)]
    lines = [f.read_text().splitlines() if f.exists() else [] for f in files]
    return [[json.loads(line) for line in each] for each in lines]


def _start(command: Command, plan: Plan, folder: Path, url: str, until: float) -> int:
    """One start of all ranks; the first status that is not 0, or 0."""
    children = Children()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
        "SPIKEGUARD_SERVER": url,
        "SPIKEGUARD_TOKEN": "none",
        "SPIKEGUARD_SEND_INTERVAL": "0.05",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **plan.environment(),
        **command.environment,
    }
    try:
        ranks = []
        for rank in range(command.ranks):
            mine = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(command.ranks)}
            words = ["env", "-C", str(command.folder or folder), *command.words]
            one = {**shared, **mine} if command.ranks > 1 or command.grouped else shared
            ranks.append(children.start(words, one, folder / "job.log"))
        return _waited_for(ranks, until)
    finally:
        children.end()


def _waited_for(ranks: Sequence[subprocess.Popen[bytes]], until: float) -> int:
    """The status of the rank that failed first, 0 where none did, 124 where time was up."""
    ended: float | None = None
    while True:
        statuses = [rank.poll() for rank in ranks]
        bad = [status for status in statuses if status]
        if bad and ended is None:
            ended = time.monotonic()
        if None not in statuses or (ended and time.monotonic() > ended + GRACE_S):
            return _worst(bad)
        if REFUSED in bad or any(status < 0 for status in bad):
            return _worst(bad)
        if time.monotonic() > until:
            return 124
        time.sleep(0.02)


def _worst(bad: Sequence[int]) -> int:
    """A signal before a failure, a failure before the wish to be started again."""
    killed = next((status for status in bad if status == -signal.SIGKILL), None)
    wish = next((status for status in bad if status in START_AGAIN), None)
    return killed or (REFUSED if REFUSED in bad else 0) or wish or (bad[0] if bad else 0)


def own_loop(name: str, ranks: int = 1, python: Path | None = None, **more: Any) -> Command:
    """One of the loops of `real_jobs_loops`; in this environment, or in that of `python`."""
    words = [str(python or sys.executable), "-m", "benchmarks.real_jobs_loops", name]
    return Command(words, ranks, **more)


def public_script(name: str, checkout: Path) -> Command:
    """A script of a public repository, in this environment."""
    return Command([sys.executable, "-m", "benchmarks.real_jobs_public", name, str(checkout)])


def torchtitan(python: Path, layout: str, ranks: int) -> Command:
    """torchtitan's Trainer, in the environment that has it."""
    return Command([str(python), "-m", "benchmarks.real_jobs_titan", layout], ranks)


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
