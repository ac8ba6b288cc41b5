"""Runs of the reference job, in this process or in real ones, on a little real text."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from spikeguard import CheckpointDirectory
from spikeguard_trainer.__main__ import main

LIMIT_S = 150.0  # of patience on a busy machine
TEXT = Path(sysconfig.get_path("stdlib")) / "asyncio"
OFFLINE = {k: v for k, v in os.environ.items() if not k.startswith("SPIKEGUARD_")}
ENVIRONMENT = OFFLINE | {"OMP_NUM_THREADS": "1"}


def arguments(out: Path, *options: str) -> list[str]:
    """The command line of a tiny run with `--out`, `--log` and `--summary` in `out`."""
    fixed = ["--preset", "tiny", "--data", str(TEXT), "--out", str(out)]
    files = ["--log", str(out / "log.csv"), "--summary", str(out / "summary.json")]
    return [*fixed, *files, *options]


def run(out: Path, *options: str) -> int:
    """Run it here; returns the exit status."""
    return main(arguments(out, *options))


def start(out: Path, *options: str, torchrun: int = 0) -> subprocess.Popen[str]:
    """Start it as a process of its own, or as `torchrun` ranks."""
    command = [sys.executable, "-m"]
    if torchrun:
        command += ["torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={torchrun}", "-m", "--"]
    command += ["spikeguard_trainer", *arguments(out, *options)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run_process(out: Path, *options: str, torchrun: int = 0) -> str:
    """Run it as a process to its end; returns what it said on stderr."""
    with start(out, *options, torchrun=torchrun) as process:
        try:
            _, said = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, said
    return said


def kill_at(process: subprocess.Popen[str], out: Path, step: int, saved: int) -> None:
    """SIGKILL once the row of `step` is in the log and the checkpoint of step `saved` is whole."""
    deadline = time.monotonic() + LIMIT_S
    kept = CheckpointDirectory(out / "checkpoints")
    with process:
        while _newest(out) < step or saved not in {target.step for target in kept.targets()}:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()


def _newest(out: Path) -> int:
    return max((int(row["step"]) for row in rows(out)), default=0)


def rows(out: Path) -> list[dict[str, str]]:
    """The complete rows of the log."""
    file = out / "log.csv"
    text = file.read_text() if file.exists() else ""
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def losses(out: Path) -> dict[int, str]:
    """The last loss logged for each step, as written: equal texts are equal bits."""
    return {int(row["step"]): row["loss"] for row in rows(out)}


def summary(out: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return read
