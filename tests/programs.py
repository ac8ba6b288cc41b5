"""Our programs as processes that need not import anything: each is forked from one that has.

It has its own session and process group, output, environment and exit status, takes every signal,
and ends with the process that it was forked from. What it does not have is a command line of its
own in /proc: that a program starts as it is typed is for tests that start it so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import cast

import httpx

from benchmarks.http_server import free_port
from tests.agent.forks import start_program

SPIKEGUARD = "spikeguard_cli.main"
PROGRAM = """\
import ctypes, os, runpy, signal, sys
os.setsid()
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, as `Children` asks for
ctypes.CDLL(None).prctl(15, {name!r})  # PR_SET_NAME, for whoever reads /proc
sys.path.insert(0, {folder!r})
runpy.run_module({module!r}, None, "__main__", True)
"""


class Forked:
    """A forked process as one of `subprocess`: what tests ask for, and no more."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return status

    def send_signal(self, sign: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, sign)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_module(
    module: str,
    *arguments: str,
    output: Path,
    errors: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """`python -m MODULE`, its output in files, with this environment instead of ours."""
    name = " ".join((module.rpartition("spikeguard_")[2], *arguments)).encode()[:15]
    program = PROGRAM.format(folder=os.getcwd(), module=module, name=name)
    given = os.environ if environment is None else environment
    process = start_program(program, (output, errors or output), arguments, given)
    return cast("subprocess.Popen[bytes]", Forked(process))


def serve(
    port: int, *, log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """`spikeguard serve` on `port`."""
    return start_module(
        SPIKEGUARD, "serve", "--port", str(port), output=log, environment=environment
    )


@contextmanager
def running(
    log: Path, environment: Mapping[str, str], ready: str = "readyz"
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The same on a free port once `ready` is answered with 200: its address and its process, which
    is told to stop in the end."""
    port, until = free_port(), time.monotonic() + 120
    process = serve(port, log=log, environment=environment)
    try:
        while not is_answered(f"http://127.0.0.1:{port}/{ready}"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(120)


def is_answered(url: str) -> bool:
    """With 200."""
    try:
        return httpx.get(url, timeout=120).status_code == 200
    except httpx.TransportError:
        return False


def typed(
    *words: str, environment: Mapping[str, str] | None = None, within_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """`spikeguard WORDS`, once it has ended."""
    with tempfile.TemporaryDirectory(prefix="sg-typed-") as folder:
        said = [Path(folder) / name for name in ("output", "errors")]
        process = start_module(
            SPIKEGUARD, *words, output=said[0], errors=said[1], environment=environment
        )
        try:
            status = process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(words, status, *(file.read_text() for file in said))
