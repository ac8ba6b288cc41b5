"""The files that an agent keeps, made anew and read back; what reading them back came to.

Invariants
- Files are made and read through what users call: `attach`, the loop's calls, `spikeguard sync`,
  `spikeguard journal`, and the classes behind them.
- A reader must not raise but with a sentence for a person. What is missing has to be told, and of
  samples as many have to be declared to the server.
"""

from __future__ import annotations

import io
import json
import logging
import resource
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.fuzz_files_changes import CHANGES, Change
from spikeguard import CheckpointDirectory, Guard, Settings, attach
from spikeguard.cli.sync import sync
from spikeguard.commands.journal import Journal
from spikeguard.errors import AttachError, ResumeError
from spikeguard.state.lineage import Abandonment
from spikeguard.uplink.outbox import Outbox
from spikeguard_cli.main import main
from spikeguard_protocol import (
    Ack,
    BatchRange,
    CommandResult,
    Gap,
    Medium,
    Message,
    ResultState,
    RunId,
    Samples,
    SegmentId,
    TargetSaved,
    decode_message,
    encode,
)
from spikeguard_trainer.stage.ports import listening

RUN = RunId("default", "fuzzed")
ATTEMPT = "0123456789abcdef"
SAMPLES = 300
LIMIT = 64 * 1024  # bytes; small, so that there are several segments
QUICK = Settings(send_interval_s=0.001, timeout_s=5.0, backoff_s=0.01, snapshot_every=0)


class Store:
    """What the server has: messages by attempt, each number once."""

    def __init__(self) -> None:
        self.url = ""
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.last: dict[str, int] = {}
        self.messages: list[Message] = []

    def answer(self, body: bytes) -> tuple[int, bytes]:
        """As docs/protocol.md has it."""
        message = decode_message(body)
        last = self.last.get(message.attempt, 0)
        if message.sequence > last + 1:
            error = {"code": "sequence_gap", "field": None, "message": "", "remedy": ""}
            return 409, json.dumps({"error": error, "expected": last + 1}).encode()
        if message.sequence == last + 1:
            self.messages.append(message)
            gaps = [record.last for record in message.records if isinstance(record, Gap)]
            last = self.last[message.attempt] = max(message.sequence, *gaps, 0)
        return 200, encode(Ack(last, (), False, ()))

    def of(self, kind: type[Any]) -> list[Any]:
        """Every record of `kind`."""
        return [r for m in self.messages for r in m.records if isinstance(r, kind)]


@contextmanager
def serving() -> Iterator[Store]:
    """A store behind a real HTTP server."""
    store = Store()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65_536  # an answer is one packet

        def do_POST(self) -> None:
            status, answer = store.answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with listening(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as store.url:
        yield store


@contextmanager
def heard() -> Iterator[list[str]]:
    """What the agent's logger, and the terminal, were told."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger, output = logging.getLogger("spikeguard"), io.StringIO()
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        with redirect_stderr(output), redirect_stdout(io.StringIO()):
            yield told
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
        told += output.getvalue().splitlines()


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """A write that would make a file longer than `size` bytes fails, by the kernel."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@dataclass
class Found:
    """What one change came to."""

    missing: int = 0
    declared: int = 0
    told: bool = False
    wrong: list[str] = field(default_factory=list)  # what broke a promise


def change_one(random: Random, folder: Path, files: list[Path]) -> str:
    """Change one of `files`; in words, what was done to which."""
    path, other = random.choice(files), random.choice(files)
    if random.random() < 0.05:
        path.unlink()
        return f"remove {path.relative_to(folder)}"
    change: Change = random.choice(CHANGES)
    path.write_bytes(change(random, path.read_bytes(), other.read_bytes()))
    return f"{change.__name__} {path.relative_to(folder)}"


class LogFiles:
    """An outbox with samples, results and word of checkpoints, partly acknowledged."""

    name = "log"
    acknowledged: bytes | None = None  # a message that the server has already

    def make(self, folder: Path, random: Random) -> None:
        """What an attempt leaves that was killed, or ended without a server."""
        self.acknowledged = None
        told: list[str] = []
        Journal(folder / "journal.jsonl", RUN)
        box = Outbox(folder / "outbox" / ATTEMPT, RUN, ATTEMPT, LIMIT, told.append)
        for step in range(1, SAMPLES + 1):
            signals = {"loss": (float(step),), "grad_norm": (0.5 * step,)}
            batches = (BatchRange(step - 1, step),)
            box.put(Samples(0, (step,), signals, batches))
            if step % 50 == 0:
                box.put(CommandResult(f"fuzzed#1.{step}", ResultState.APPLIED, "done", step))
                box.put(TargetSaved(f"memory-{step}", 0, step, step, Medium.MEMORY))
                box.keep_up()
        if random.random() < 0.3:
            box.next_message()
        if random.random() < 0.3:
            message = box.next_message()
            assert message is not None
            self.acknowledged = message.body
            box.acknowledge(message.sequence)
        box.close(ended=random.random() < 0.5)

    def files(self, folder: Path) -> list[Path]:
        """What is changed."""
        return sorted((folder / "outbox" / ATTEMPT).iterdir())

    def judge(self, folder: Path, store: Store) -> Found:
        """Upload it; hold what arrived against what was made."""
        found = Found()
        if self.acknowledged is not None:
            store.answer(self.acknowledged)
        with heard() as told:
            sync(Namespace(directory=str(folder), server=store.url, token_file=None, json=False))
        samples = store.of(Samples)
        got = {s: v for r in samples for s, v in zip(r.steps, r.signals["loss"], strict=True)}
        steps = [step for r in samples for step in r.steps]
        found.missing = SAMPLES - len(got)
        found.declared = sum(gap.samples_lost for gap in store.of(Gap))
        found.told = any("damaged" in line or "lost" in line for line in told)
        if any(value != step for step, value in got.items()) or len(steps) != len(got):
            found.wrong.append("a sample was changed, or stored twice")
        if found.missing > found.declared:
            found.wrong.append(f"{found.missing} samples missing, {found.declared} declared")
        rare = len({r.command for r in store.of(CommandResult)}), len(store.of(TargetSaved))
        lost_rare = rare != (SAMPLES // 50, SAMPLES // 50)
        if lost_rare and not store.of(Gap):
            found.wrong.append("a result or a target is missing and nothing is declared")
        if (found.missing or lost_rare) and not found.told:
            found.wrong.append("something is missing and nothing was told")
        return found


class FullDisk(LogFiles):
    """The same, of an attempt whose disk was full from some byte on."""

    name = "full disk"

    def make(self, folder: Path, random: Random) -> None:
        """Nothing is changed afterwards."""
        with full_disk(random.randrange(400, 12_000)):
            super().make(folder, random)

    def files(self, _: Path) -> list[Path]:
        """None."""
        return []


class JournalFiles:
    """A journal with orders that hold, and one that was taken back."""

    name = "journal"
    SKIPS = tuple(BatchRange(10 * n, 10 * n + 3) for n in range(1, 9))

    def make(self, folder: Path, _: Random) -> None:
        """Eight orders, all but the last with their results."""
        journal = Journal(folder / "journal.jsonl", RUN)
        for number, skip in enumerate(self.SKIPS, 1):
            command, point = f"fuzzed#1.{number}", SegmentId(ATTEMPT, 0)
            journal.begin(command, skip.first, skip, [Abandonment(point, skip.first)])
            if number < len(self.SKIPS):
                journal.end(CommandResult(command, ResultState.APPLIED, "done", skip.first))

    def files(self, folder: Path) -> list[Path]:
        """What is changed."""
        return sorted(path for path in folder.iterdir() if path.is_file())

    def judge(self, folder: Path, _: Store) -> Found:
        """Open it as `attach` does."""
        found = Found()
        try:
            journal = Journal(folder / "journal.jsonl", RUN, Settings())
        except AttachError as refused:
            found.told = "journal.jsonl" in str(refused) or "run" in str(refused)
            if not found.told:
                found.wrong.append(f"refused without a name: {refused}")
            return found
        found.missing = len(set(self.SKIPS) - set(journal.skips.ranges))
        found.missing += len(self.SKIPS) - 1 - len(journal.results)
        found.told = bool(journal.damage)
        if set(journal.skips.ranges) - set(self.SKIPS):
            found.wrong.append("it leaves out what nobody ordered")
        if found.missing and not found.told:
            found.wrong.append(f"{found.missing} entries are missing and nothing was told")
        with heard(), redirect_stdout(StringIO()):
            main(("journal", str(folder), "--jsonl"))
        return found


class RunFiles:
    """The whole directory of a run, with checkpoints, and a start on it."""

    name = "run"

    def make(self, folder: Path, _: Random) -> None:
        """An attempt without a server, with two checkpoints."""
        with heard():
            trained(folder, None, 12)

    def files(self, folder: Path) -> list[Path]:
        """All but the tensors, which DCP owns."""
        files = [path for path in folder.rglob("*") if path.is_file()]
        return sorted(p for p in files if p.suffix != ".distcp" and p.name != ".metadata")

    def judge(self, folder: Path, store: Store) -> Found:
        """Attach, resume and train on."""
        found = Found()
        with heard() as told:
            try:
                guard = trained(folder, store.url, 3)
            except (AttachError, ResumeError) as refused:
                found.told = str(folder) in str(refused) or "checkpoint" in str(refused)
                if not found.told:
                    found.wrong.append(f"refused without a name: {refused}")
                return found
        got = {(m.attempt, s) for m in store.messages for r in m.records
               if isinstance(r, Samples) for s in r.steps}  # fmt: skip
        found.missing = max(0, 12 - len([s for a, s in got if a != guard.attempt]))
        found.declared = sum(gap.samples_lost for gap in store.of(Gap))
        found.told = bool(guard.faults) and bool(told)
        if found.missing > found.declared:
            found.wrong.append(f"{found.missing} samples missing, {found.declared} declared")
        if found.missing and not found.told:
            found.wrong.append("samples are missing and nothing was told")
        return found


def trained(folder: Path, server: str | None, steps: int) -> Guard:
    """A tiny job that goes on from its newest checkpoint; its guard, which has finished."""
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    checkpoints = CheckpointDirectory(folder / "checkpoints", every=5, background=False)
    guard = attach(
        model,
        optimizer,
        run="fuzzed",
        directory=folder / "guard",
        checkpoints=checkpoints,
        server=server,
        settings=QUICK,
    )
    try:
        guard.resume()
        for _, batch in zip(range(steps), guard.batches([torch.ones(1, 2)] * 100), strict=False):
            guard.loss(model(batch).square().mean()).backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
    finally:
        guard.finish()
    return guard


Subject = LogFiles | JournalFiles | RunFiles
SUBJECTS: tuple[Subject, ...] = (LogFiles(), FullDisk(), JournalFiles(), RunFiles())


def copied(source: Path, place: Path) -> Path:
    """A fresh copy of what was made."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    return place
