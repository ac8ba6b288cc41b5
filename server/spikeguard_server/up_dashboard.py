"""The dashboard as a child process of `spikeguard up`.

Law: it is found, never imported, and gets nothing of ours but the server's address and a token
that can only look. It ends with us: by our hand, by the kernel's if we were killed, and by the
next `up` where the kernel can't.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PACKAGE = "spikeguard_dashboard"
PID = "dashboard.pid"
LOG = "dashboard.log"
REFRESH = "SPIKEGUARD_DASHBOARD_REFRESH"  # the dashboard's own setting
GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def installed() -> bool:
    """Whether there is a dashboard to start, with what it needs."""
    return all(importlib.util.find_spec(name) for name in (PACKAGE, "streamlit"))


@contextmanager
def dashboard(directory: Path, port: int, server: str, token: str) -> Iterator[None]:
    """Run the dashboard on `port` of the loopback; its log lies in `directory`."""
    end_left_over(directory / PID)
    child = _start(directory, port, environment_for(server, token))
    try:
        yield
    finally:
        _end(child)
        (directory / PID).unlink(missing_ok=True)


def environment_for(server: str, token: str) -> dict[str, str]:
    """What the dashboard may know: nothing of the database, one address, one viewer's token, and
    how often it shall look."""
    ours = ("SPIKEGUARD_", "DATABASE_", "PG")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == REFRESH or not name.startswith(ours)
    }
    public = os.environ.get("SPIKEGUARD_PUBLIC_URL", server)
    return {
        **kept,
        "SPIKEGUARD_SERVER": server,
        "SPIKEGUARD_PUBLIC_URL": public,
        "SPIKEGUARD_TOKEN": token,
    }


def end_left_over(pid_file: Path) -> None:
    """End a dashboard that outlived an `up` that was killed, if the pid still is one."""
    try:
        pid = int(pid_file.read_text())
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return
    if PACKAGE.encode() in arguments:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _start(directory: Path, port: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    owner = os.getpid()
    held = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, held)  # a child must not be lost between two lines
    try:
        with (directory / LOG).open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", PACKAGE, "--host", "127.0.0.1", "--port", str(port)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us, who stop it in order
                preexec_fn=lambda: _end_with(owner),
            )
        (directory / PID).write_text(str(child.pid))
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


def _end_with(owner: int) -> None:
    """Runs in the child before it becomes the dashboard: let the kernel end it with us."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != owner:  # it went before the kernel was asked
            os._exit(1)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
