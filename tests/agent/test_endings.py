"""However the process ends, what can be said is said, and an order is carried out once."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
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
    AttemptEnded,
    BatchRange,
    CommandResult,
    ResultState,
    Rollback,
    SegmentStarted,
    TargetSaved,
    decode_message,
)

from .forks import FORKS, exit_status, start_script
from .heard import parts_of
from .job import Job, Loader, assert_same
from .test_exactness import Without
from .wire import Wire, await_that, served

pytestmark = pytest.mark.slow


def start(
    folder: Path, server: str, then: str, first: str = "", settings: str = "FAST"
) -> ForkServerProcess:
    script = f"""
import os, time
from pathlib import Path
from tests.agent.job import BRIEF, FAST, Job
job = Job(Path({str(folder)!r}), server={server!r}, settings={settings})
{first}
job.train_to(20)
print("ready", flush=True)
{then}
"""
    said = folder / "said.txt"
    process = start_script(script, said)
    await_that(lambda: said.exists() and "ready" in said.read_text())
    return process


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("job.guard.finish()", "finished"),
        ("raise RuntimeError('out of memory')", "exited without finish()"),
    ],
)
def test_an_end_is_told_with_everything_before_it(tmp_path: Path, then: str, reason: str) -> None:
    with served(Wire()) as wire:
        exit_status(start(tmp_path, wire.url, then))
        assert wire.records(AttemptEnded)[-1].reason == reason
        assert (0, 20) in wire.column("loss")


def test_sigterm_flushes_and_then_terminates(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        process = start(tmp_path, wire.url, "time.sleep(600)")
        process.terminate()
        assert exit_status(process) == -signal.SIGTERM
        await_that(lambda: wire.records(AttemptEnded))
        assert wire.records(AttemptEnded)[-1].reason == "SIGTERM"
        assert (0, 20) in wire.column("loss")


def hang(job: Job) -> int:
    """Have every write wait for a reader that never comes, as for a disk; the reader's end."""
    job.train_to(10)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    outbox = parts_of(job.guard).outbox
    assert outbox is not None
    spool = outbox._spool
    append = spool.append

    def waiting(message: int, lines: Sequence[bytes], written: int) -> None:
        with suppress(BrokenPipeError):
            os.write(writer, b"x")
        append(message, lines, written)

    spool.append = waiting
    return reader


HANG = "from tests.agent.test_endings import hang; hang(job)"


@pytest.mark.parametrize("hangs", ["absent server", "server", "server and disk"])
def test_whatever_hangs_sigterm_ends_the_process(tmp_path: Path, hangs: str) -> None:
    """The server is not there, or takes the connection and says nothing; the disk takes no byte."""
    first = HANG if hangs == "server and disk" else ""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = 9 if hangs == "absent server" else mute.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        process = start(tmp_path, url, "time.sleep(600)", first, "BRIEF")
        process.terminate()
        assert exit_status(process) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("child", "status"), [("raise SystemExit(3)", 3), ("os.kill(os.getpid(), 15)", -15)]
)
def test_a_forked_child_ends_at_once_and_ends_nothing_of_its_parent(
    child: str, status: int, tmp_path: Path
) -> None:
    """As the workers of a pool that the loop's evaluation makes; an alarm ends one that waits."""
    fork = f"""
import signal
forked = os.fork()
if not forked:
    signal.alarm(30)
    {child}
print(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]), flush=True)
job.train_to(40)
job.guard.finish()
"""
    with served(Wire()) as wire:
        assert exit_status(start(tmp_path, wire.url, fork)) == 0
        assert (tmp_path / "said.txt").read_text().split() == ["ready", str(status)]
        assert [end.reason for end in wire.records(AttemptEnded)] == ["finished"]
        assert (0, 40) in wire.column("loss")


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
        job = Job(loader=loader).train_to(LAST)
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
