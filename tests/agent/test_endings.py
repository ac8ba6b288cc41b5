"""However the process ends, what can be said is said within the cap."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from spikeguard_protocol import AttemptEnded

from .forks import exit_status, start_script
from .heard import parts_of
from .job import Job
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
