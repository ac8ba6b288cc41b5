"""The dashboard as a child process of `spikeguard up`.

Law: it is found, never imported, and gets nothing of ours but the server's address and the socket
that it answers on. It ends with us: by our hand, and by the kernel's if we were killed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "spikeguard_dashboard"
LOG = "dashboard.log"
OWN = ("SPIKEGUARD_DASHBOARD_REFRESH",)  # the dashboard's settings
GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


NAME = "spikeguard.localhost"  # browsers find it by themselves; of another name no cookie comes


def address_in_browser(address: str) -> str:
    """An address of this machine by the name that people's browsers use."""
    return address.replace("//127.0.0.1:", f"//{NAME}:")


def dashboard_installed() -> bool:
    """Whether there is a dashboard to start, with what it needs."""
    return all(importlib.util.find_spec(name) for name in (PACKAGE, "streamlit"))


@contextmanager
def dashboard(directory: Path, listener: socket.socket, server: str) -> Iterator[Dashboard]:
    """Run the dashboard on `listener`, which stays ours; its log lies in `directory`."""
    process = _start(directory, listener, environment_for(server))
    try:
        yield Dashboard(process, directory / LOG)
    finally:
        _end(process)


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The process that shows the pages. Its port is held by us, so nobody answers in its place."""

    process: subprocess.Popen[bytes]
    log: Path
    name: str = "the dashboard"

    def ended(self) -> bool:
        """Whether its process is gone."""
        return self.process.poll() is not None


def environment_for(server: str) -> dict[str, str]:
    """What the dashboard may know: nothing of the database, one address, and its own settings."""
    ours = ("SPIKEGUARD_", "DATABASE_", "PG")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in OWN or not name.startswith(ours)
    }
    public = os.environ.get("SPIKEGUARD_PUBLIC_URL", address_in_browser(server))
    return {**kept, "SPIKEGUARD_SERVER": server, "SPIKEGUARD_PUBLIC_URL": public}


def _start(
    directory: Path, listener: socket.socket, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    descriptor = listener.fileno()
    prepare = _prepare_child(os.getpid())
    held = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, held)  # a child must not be lost between two lines
    try:
        with (directory / LOG).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", PACKAGE, "--descriptor", str(descriptor)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(descriptor,),
                start_new_session=True,  # Ctrl-C is for us, who stop it in order
                preexec_fn=prepare,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


def _prepare_child(owner: int) -> Callable[[], None]:
    """What runs in the child before it becomes the dashboard: the kernel ends it with us.

    The library is opened here: in the child, a lock that another thread held would stay held.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != owner:  # it went before the kernel was asked
                os._exit(1)

    return prepare


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
