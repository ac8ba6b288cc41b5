"""Child processes: each starts in a session of its own and none outlives its parent: the
kernel ends them if we die.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spikeguard_cli.command import CommandFailed

PR_SET_PDEATHSIG = 1  # linux/prctl.h
GRACE_S = 15.0


def _ending_with(parent: int) -> Callable[[], None]:
    """What runs in the child between fork and exec."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it went before the kernel was asked
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))

    return prepare


class Children:
    """Starts children and ends all of them, newest first."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start `command` with its output in `log`; a signal in between cannot lose it."""
        ours = (signal.SIGINT, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_BLOCK, ours)
        try:
            with log.open("ab") as output:
                child = subprocess.Popen(
                    command,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_ending_with(os.getpid()),
                )
            self._running.append(child)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ours)
        return child

    def end(self) -> None:
        """End every child: politely, then for good with its whole process group."""
        for child in reversed(self._running):
            end(child)
        self._running.clear()


def end(child: subprocess.Popen[bytes]) -> None:
    """End one child: politely, then for good with its whole process group."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_for(
    ready: Callable[[], bool], limit_s: float, child: subprocess.Popen[bytes], log: Path
) -> None:
    """Return once `ready()` holds; `CommandFailed` with the end of `log` if `child` dies first."""
    until = time.monotonic() + limit_s
    while not ready():
        if child.poll() is not None or time.monotonic() > until:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise CommandFailed(f"not ready after {limit_s:.0f} s; the end of {log}:\n{tail}")
        time.sleep(0.05)
