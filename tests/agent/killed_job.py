"""A job that gets one order and is killed by SIGKILL at one named point of carrying it out."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spikeguard.commands.journal
from spikeguard import CheckpointDirectory
from spikeguard.commands.journal import sealed_line
from spikeguard.uplink.sender import Sender
from spikeguard.uplink.transport import Transport
from spikeguard_protocol import CommandResult, decode_message

from .heard import parts_of
from .job import Job
from .wire import await_that

ORDERED_AT = 18  # the step that is trained before the order is looked for


def make(folder: Path, url: str, **chosen: Any) -> Job:
    """The job of either attempt; checkpoints every 5 steps, snapshots every 10."""
    disk = CheckpointDirectory(folder / "checkpoints", every=5, keep=9, background=False)
    return Job(folder, server=url, checkpoints=disk, **chosen)


def main(folder: str, url: str, point: str) -> None:
    """Train, wait for an order, act on it; ends by SIGKILL before this returns."""
    job = make(Path(folder), url)
    POINTS[point](job)
    job.train_to(ORDERED_AT)
    await_that(lambda: job.guard.state().orders)
    job.train_step()
    await_that(lambda: False)  # the points of the sender's thread: it dies meanwhile


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_before(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """`owner.name` ends the process instead of doing anything, where `when` says so."""
    original = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        if when(*given):
            die()
        return original(*given, **named)

    setattr(owner, name, call)


def dies_after(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """`owner.name` ends the process once it has done its work."""
    original = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        value = original(*given, **named)
        if when(*given):
            die()
        return value

    setattr(owner, name, call)


def dies_within_the_line(entry: bytes) -> None:
    """Half of the journal's line of this kind reaches the disk."""
    module: Any = spikeguard.commands.journal
    whole = module.append_line

    def append(path: Path, written: dict[str, Any]) -> None:
        line = sealed_line(written, 99, path.name)
        if entry not in line:
            whole(path, written)
            return
        with path.open("ab", buffering=0) as file:
            file.write(line[: len(line) // 2])
            os.fsync(file.fileno())
        die()

    module.append_line = append


def answers(record: object, *_: object) -> bool:
    return isinstance(record, CommandResult)


def carries_an_answer(message: Any) -> bool:
    return any(map(answers, decode_message(message.body).records))


def way_out(job: Job) -> Transport:
    sender = parts_of(job.guard).sender
    assert isinstance(sender, Sender)
    return sender._transport


def journal_of(job: Job) -> Any:
    return parts_of(job.guard).journal


POINTS: dict[str, Callable[[Job], None]] = {
    "before it is written down": lambda job: dies_before(journal_of(job), "begin"),
    "half written down": lambda _: dies_within_the_line(b'"entry": "begun"'),
    "written down": lambda job: dies_after(journal_of(job), "begin"),
    "half done": lambda job: dies_after(parts_of(job.guard).recovery.state, "restore"),
    "done": lambda job: dies_after(parts_of(job.guard).recovery, "restore"),
    "before its result is written down": lambda job: dies_before(journal_of(job), "end"),
    "its result half written down": lambda _: dies_within_the_line(b'"entry": "result"'),
    "its result written down": lambda job: dies_after(journal_of(job), "end"),
    "its report on the way to the outbox": lambda job: dies_after(
        parts_of(job.guard).outbox, "put", answers
    ),
    "its report not sent": lambda job: dies_before(way_out(job), "send", carries_an_answer),
    "its report sent and no answer heard": lambda job: dies_after(
        way_out(job), "send", carries_an_answer
    ),
}
