"""Children of which a training job need not import torch: it is forked from a process that has."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import cast

from spikeguard_trainer.stage.processes import Children
from tests.agent.forks import start_script

MODULES = ("spikeguard_trainer", "benchmarks.truth_job", "torch.distributed.run")
PROGRAM = """\
import ctypes, os, runpy, signal, sys
os.setsid()
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, as `Children` asks for
sys.path.insert(0, {folder!r})
runpy.run_module({module!r}, None, "__main__", True)
"""


class ForkingChildren(Children):
    """Starts `python -m MODULE` of a training job by a fork; everything else as it does."""

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        _, option, module, *arguments = command
        if option != "-m" or module not in MODULES:
            return super().start(command, environment, log)
        program = PROGRAM.format(folder=os.getcwd(), module=module)
        forked = Forked(start_script(program, log, *arguments, **environment))
        child = cast("subprocess.Popen[bytes]", forked)
        self._running.append(child)
        return child


class Forked:
    """A forked process as one of `subprocess`: what jobs are asked for, and no more."""

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
            raise subprocess.TimeoutExpired("a forked job", timeout or 0.0)
        return status

    def send_signal(self, sign: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, sign)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)
