"""Runs of the reference job, in this process or in real ones, on a little real text."""

from __future__ import annotations

import csv
import json
import signal
import sysconfig
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import spikeguard_trainer
from spikeguard import CheckpointDirectory
from spikeguard_trainer.__main__ import main
from tests.agent.forks import FORKED, exit_status, start_script, torchrun

LIMIT_S = 150.0  # of patience on a busy machine
TEXT = Path(sysconfig.get_path("stdlib")) / "asyncio"
TRAINER = str(Path(spikeguard_trainer.__file__).with_name("__main__.py"))
PROGRAM = "import runpy; runpy.run_module('spikeguard_trainer', None, '__main__', True)"


def arguments(out: Path, *options: str) -> list[str]:
    """The command line of a tiny run with `--out`, `--log` and `--summary` in `out`."""
    fixed = ["--preset", "tiny", "--data", str(TEXT), "--out", str(out)]
    files = ["--log", str(out / "log.csv"), "--summary", str(out / "summary.json")]
    return [*fixed, *files, *options]


def run(out: Path, *options: str) -> int:
    """Run it here; returns the exit status."""
    return main(arguments(out, *options))


def start(out: Path, *options: str) -> ForkServerProcess:
    """Start it as a process of its own; what it says is in `said.txt` beside its log."""
    out.mkdir(parents=True, exist_ok=True)
    return start_script(PROGRAM, out / "said.txt", *arguments(out, *options))


def run_process(out: Path, *options: str) -> str:
    """Run it as a process to its end; returns what it said."""
    status = exit_status(start(out, *options), LIMIT_S)
    said = (out / "said.txt").read_text()
    assert status == 0, said
    return said


def run_ranks(out: Path, *options: str, ranks: int) -> None:
    """Run it to its end under `torchrun`."""
    said = out / "said.txt"
    program = (*FORKED, "--", TRAINER, *arguments(out, *options))
    assert torchrun(said, *program, ranks=ranks) == 0, said.read_text()


def kill_at(process: ForkServerProcess, out: Path, step: int, saved: int) -> None:
    """SIGKILL once the row of `step` is in the log and the checkpoint of step `saved` is whole."""
    deadline = time.monotonic() + LIMIT_S
    kept = CheckpointDirectory(out / "checkpoints")
    while _newest(out) < step or saved not in {target.step for target in kept.targets()}:
        assert process.exitcode is None, (out / "said.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    assert exit_status(process, LIMIT_S) == -signal.SIGKILL


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
