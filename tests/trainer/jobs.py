"""Real processes of the reference job, for tests."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_S = 90.0
OFFLINE = {k: v for k, v in os.environ.items() if not k.startswith("SPIKEGUARD_")}
ENVIRONMENT = OFFLINE | {"OMP_NUM_THREADS": "1"}


def start(out: Path, *options: str, torchrun: int = 0) -> subprocess.Popen[str]:
    """The job with `--out`, `--log` and `--summary` in `out`; `torchrun` ranks if not 0."""
    command = [sys.executable, "-m"]
    if torchrun:
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={torchrun}", "-m", "--"]
    command += ["spikeguard_trainer", "--preset", "tiny", "--out", str(out)]
    command += ["--log", str(out / "log.csv"), "--summary", str(out / "summary.json"), *options]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run(out: Path, *options: str, torchrun: int = 0, status: int = 0) -> str:
    """Run the job to its end; returns what it said on stderr."""
    with start(out, *options, torchrun=torchrun) as process:
        try:
            _, said = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == status, said
    return said


def kill_at(process: subprocess.Popen[str], out: Path, step: int) -> None:
    """SIGKILL once the row of `step` is in the log."""
    deadline = time.monotonic() + LIMIT_S
    with process:
        while len(rows(out)) < step:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()


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
