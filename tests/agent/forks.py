"""Processes that need not import torch or the server: each is forked from one that has.

Importing torch and making the first optimizer, which imports torch._dynamo, takes seconds that no
process has to spend again; so does the server. All test files of a worker
share the one that is forked from, which the worker forks from itself once it has read them.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest


class Fork(ForkServerProcess):
    """Leaves what it was forked with out of every garbage collection, which would copy it."""

    def run(self) -> None:
        gc.freeze()
        super().run()


FORKS = multiprocessing.get_context("forkserver")
setattr(FORKS, "Process", Fork)  # noqa: B010
FORKS.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed.fsdp", "numpy", "spikeguard",
     "spikeguard_server.cli.up", "alembic.command",
     # what the files of tests import, each of whose processes reads its own file
     "pytest", "torch.distributed.checkpoint", "torch.distributed.tensor.debug",
     "spikeguard_server.report.plots"]
)  # fmt: skip


@cache
def fork_from_here() -> None:
    """Fork the process that all others are forked from, once, while this one has no threads, and
    before pytest keeps what loggers are told.

    It waits until somebody asks, then imports what is missing here; by itself multiprocessing would
    start an interpreter that imports everything again, five seconds of a core in each worker.
    """
    resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(util, "spawnv_passfds", _fork_instead)
        forkserver.ensure_running()


def _fork_instead(_program: str, words: Sequence[str], handles: Sequence[int]) -> int:
    """`words[-1]` is what the interpreter would run; the first of `handles` is where people ask.

    The child writes where its handles lead, past what pytest put in their place, and ends with this
    process."""
    if child := os.fork():
        return child
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    select.select(handles[:1], [], [])
    try:
        exec(words[-1], {"__name__": "__main__"})
    finally:
        os._exit(0)


LAUNCHER = "from torch.distributed.run import main; main()"
FORKED = ("--run-path", "--start-method=fork")  # the launcher's own options: no rank imports torch


def start_script(
    source: str, output: Path, *arguments: str, **environment: str
) -> ForkServerProcess:
    """`source` as `python -c` runs it, what it says appended to `output`.

    `environment` is added to ours."""
    return start_program(source, (output, output), arguments, {**os.environ, **environment})


def start_program(
    source: str,
    outputs: tuple[Path, Path],
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> ForkServerProcess:
    """`source` as `python -c` runs it, with this environment and no more.

    What it writes on standard output and error is appended to `outputs`."""
    names = (str(outputs[0]), str(outputs[1]))
    given = (source, names, tuple(arguments), dict(environment))
    process = FORKS.Process(target=_as_a_program, args=given)
    process.start()
    return process


def torchrun(output: Path, *program: str, ranks: int, restarts: int = 0, **environment: str) -> int:
    """Exit status of `ranks` processes of `program` under the launcher that people use.

    The launcher is forked too. With `FORKED` before the path of a script it forks each rank as
    well; without, each rank is a program of its own, as everywhere.
    """
    command = ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", *program]
    environment |= {"OMP_NUM_THREADS": "1"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # pytorch#135712: stale addresses
    source = f"import os; os.environ.update({environment!r})\n{LAUNCHER}"
    return exit_status(start_script(source, output, *command[1:]))


def started(ranks: list[ForkServerProcess]) -> list[ForkServerProcess]:
    for rank in ranks:
        rank.start()
    return ranks


def ended(ranks: Sequence[ForkServerProcess], within_s: float = 300.0) -> list[int | None]:
    """Their exit statuses; none may hang."""
    for rank in ranks:
        rank.join(within_s)
    hung = [rank for rank in ranks if rank.is_alive()]
    for rank in hung:
        rank.kill()
        rank.join()
    assert not hung, "a rank hung"
    return [rank.exitcode for rank in ranks]


def _as_a_program(
    source: str, outputs: tuple[str, str], arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    """To the end that an interpreter makes, which multiprocessing's own children leave out."""
    for handle, output in enumerate(outputs, start=1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), handle)
    os.environ.clear()  # the forkserver's are those of its own start
    os.environ.update(environment)
    sys.argv, status = ["-c", *arguments], 0
    try:
        exec(compile(source, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    ctypes.pythonapi.Py_Exit(status)  # waits for threads, runs what `atexit` holds


def exit_status(process: ForkServerProcess, within_s: float = 300.0) -> int:
    """Of one that ends by itself; minus the signal that ended it."""
    process.join(within_s)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
        raise AssertionError(f"it ran on for {within_s} s")
    return status
