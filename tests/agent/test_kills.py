"""An order is carried out once and answered, wherever between the two the process is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spikeguard.commands.journal
from spikeguard import CheckpointDirectory
from spikeguard.commands.journal import sealed_line
from spikeguard.uplink.sender import Sender
from spikeguard.uplink.transport import Transport
from spikeguard_protocol import (
    Action,
    BatchRange,
    CommandResult,
    ResultState,
    Rollback,
    SegmentStarted,
    TargetSaved,
    decode_message,
)

from .forks import FORKS
from .heard import parts_of
from .job import Job, Loader, assert_same
from .test_exactness import Without
from .wire import Wire, await_that, served

pytestmark = pytest.mark.slow

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

SKIP = BatchRange(12, 15)
LAST = 25
UNTOUCHED = ("before it is written down", "half written down")  # as if it had never come


@pytest.fixture(scope="module")
def trained() -> dict[bool, Any]:
    """The whole state after `LAST` steps, with and without the batches of `SKIP`."""
    found = {}
    for without, loader in ((False, Loader()), (True, Without([(SKIP.first, SKIP.end)]))):
        job = Job(loader=loader)
        job.train_to(LAST)
        job.guard.finish()
        found[without] = job.everything()
    return found


@pytest.fixture
def wire() -> Iterator[Wire]:
    with served(Wire()) as wire:
        yield wire


def killed(wire: Wire, folder: Path, point: str, choose: Callable[[Wire], Action]) -> None:
    """Train a first attempt, order what `choose` says, see it die at `point`."""
    job = FORKS.Process(target=main, args=(str(folder), wire.url, point))
    job.start()
    await_that(lambda: wire.messages and (0, ORDERED_AT) in wire.column("loss"))
    wire.order(choose(wire))
    job.join(300)
    if job.exitcode is None:
        job.kill()
        job.join()
    assert job.exitcode == -signal.SIGKILL


def going_back(wire: Wire) -> Action:
    """To the snapshot of step 10, without three batches behind it."""
    saved = [t for t in wire.records(TargetSaved) if t.step == 10 and t.name.startswith("memory")]
    return Rollback(saved[0].name, 10, SKIP)


@pytest.mark.parametrize("point", POINTS)
def test_a_rollback_is_carried_out_and_answered_once_wherever_the_job_is_killed(
    tmp_path: Path, wire: Wire, trained: dict[bool, Any], point: str
) -> None:
    killed(wire, tmp_path, point, going_back)
    done = point not in UNTOUCHED
    if done:  # a server delivers nothing to another attempt; where it did, that is refused
        wire.orders.clear()
    again = make(tmp_path, wire.url)
    assert again.guard.resume() == (10 if done else 15)  # that of step 15 was left behind
    again.train_step()
    await_that(lambda: again.guard.state().orders or done)
    again.train_to(LAST)
    again.guard.finish()
    (answer,) = set(wire.records(CommandResult))
    assert answer.state is (ResultState.APPLIED if done else ResultState.REFUSED)
    assert_same(again.everything(), trained[done])
    journal = (tmp_path / "guard/journal.jsonl").read_text().splitlines()
    assert sum('"entry": "begun"' in line for line in journal if line.endswith("}")) == done
    assert [name for name in again.guard.faults if not name.startswith("server")] == []
    (segment,) = wire.records(SegmentStarted, again.guard.attempt)
    assert segment.parent is not None
    assert (segment.parent.step, segment.position) == (10, 10) if done else (15, 15)
