"""Processes that need not import torch: each is forked from one that has.

Importing torch and making the first optimizer, which imports torch._dynamo, takes seconds that no
process has to spend again. All test files of a worker share the one that is forked from.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed.fsdp", "numpy", "spikeguard"]
)


def start_script(source: str, output: Path, *arguments: str) -> ForkServerProcess:
    """`source` as `python -c` runs it, what it says appended to `output`."""
    process = FORKS.Process(target=_as_a_program, args=(source, str(output), arguments))
    process.start()
    return process


def _as_a_program(source: str, output: str, arguments: tuple[str, ...]) -> None:
    """To the end that an interpreter makes, which multiprocessing's own children leave out."""
    for handle in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), handle)
    sys.argv, status = ["-c", *arguments], 0
    try:
        exec(compile(source, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    ctypes.pythonapi.Py_Exit(status)  # waits for threads, runs what `atexit` holds


def exit_status(process: ForkServerProcess, within_s: float) -> int:
    """Of one that ends by itself; minus the signal that ended it."""
    process.join(within_s)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
        raise AssertionError(f"it ran on for {within_s} s")
    return status
