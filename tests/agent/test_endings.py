"""However the process ends, what can be said is said within the cap."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spikeguard_protocol import AttemptEnded

from .wire import Wire, await_that, served

ROOT = Path(__file__).parents[2]


def start(folder: Path, server: str, then: str) -> subprocess.Popen[str]:
    script = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.agent.job import Job
job = Job(Path({str(folder)!r}), server={server!r})
job.train_to(20)
print("ready", flush=True)
{then}
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def ended(process: subprocess.Popen[str]) -> int:
    status = process.wait(30)
    assert process.stdout is not None
    process.stdout.close()
    return status


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("job.guard.finish()", "finished"),
        ("raise RuntimeError('out of memory')", "exited without finish()"),
    ],
)
def test_an_end_is_told_with_everything_before_it(tmp_path: Path, then: str, reason: str) -> None:
    with served(Wire()) as wire:
        ended(start(tmp_path, wire.url, then))
        assert wire.records(AttemptEnded)[-1].reason == reason
        assert (0, 20) in wire.column("loss")


def test_sigterm_flushes_and_then_terminates(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        process = start(tmp_path, wire.url, "time.sleep(60)")
        process.send_signal(signal.SIGTERM)
        assert ended(process) == -signal.SIGTERM
        await_that(lambda: wire.records(AttemptEnded))
        assert wire.records(AttemptEnded)[-1].reason == "SIGTERM"
        assert (0, 20) in wire.column("loss")


def test_an_absent_server_holds_nobody_up_at_the_end(tmp_path: Path) -> None:
    process = start(tmp_path, "http://127.0.0.1:9", "time.sleep(60)")
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert ended(process) == -signal.SIGTERM
    assert time.monotonic() - began < 8.0
