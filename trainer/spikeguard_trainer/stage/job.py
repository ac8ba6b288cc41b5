"""A training job as a child process, with its log and its summary."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikeguard_trainer.stage.processes import Children


@dataclass(frozen=True)
class Job:
    """One start of the reference trainer."""

    process: subprocess.Popen[bytes]
    directory: Path

    @classmethod
    def start(
        cls,
        children: Children,
        directory: Path,
        environment: Mapping[str, str],
        *options: str,
        module: str = "spikeguard_trainer",
    ) -> Job:
        """Run `python -m MODULE` with its output, log and summary in `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", module, *options]
        command += ["--out", str(directory / "out"), "--log", str(directory / "training.csv")]
        command += ["--summary", str(directory / "summary.json")]
        quiet = {"OMP_WAIT_POLICY": "passive", **environment}  # the server needs the cores as well
        return cls(children.start(command, quiet, directory / "trainer.log"), directory)

    @property
    def log(self) -> Path:
        return self.directory / "training.csv"

    def rows(self) -> list[dict[str, str]]:
        """Every row of the log, in the order trained; step numbers repeat after a rollback."""
        with self.log.open(newline="") as file:
            return list(csv.DictReader(file))

    def summary(self) -> dict[str, Any]:
        """What the trainer wrote when it ended."""
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary
