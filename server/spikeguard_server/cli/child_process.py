"""A child process that ends with us: by our hand, or by the kernel's if we were killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRACE_S = 60.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Child:
    """One that runs, by the name that a message calls it, and the log that says why it ended."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def child_process(
    name: str, command: Sequence[str], log: Path, ends_by: signal.Signals, **options: Any
) -> Iterator[Child]:
    """Run `command` with its output in `log` until the block ends, or the thread that entered it.

    `options` are those of `Popen`.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is for us, who stop it in order
            preexec_fn=_ends_with_us(ends_by),
            **options,
        )
    try:
        yield Child(name, process, log)
    finally:
        process.send_signal(ends_by)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ends_with_us(ends_by: signal.Signals) -> Callable[[], None]:
    """What runs in the child first.

    The library is opened here: in the child, a lock that another thread held would stay held.
    """
    prctl, owner = ctypes.CDLL(None).prctl, os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, ends_by)
        if os.getppid() != owner:  # it went before the kernel was asked
            os._exit(1)

    return prepare
