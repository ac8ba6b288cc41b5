"""What benchmarks share: the command line, the machine they ran on, and the spread of figures."""

from __future__ import annotations

import json
import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any


def command_line(name: str, description: str | None, quick: str) -> ArgumentParser:
    """Of `python -m benchmarks.NAME`, with `--quick`, whose help is `quick`."""
    parser = ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="the figures on one line")
    return parser


def show(report: Any, options: Namespace) -> None:
    """Print the figures as JSON, a line each unless one line was asked for."""
    print(json.dumps(report, indent=None if options.json else 1))


def say(line: str) -> None:
    """How far it is, on standard error."""
    print(line, file=sys.stderr, flush=True)


def machine() -> dict[str, str | int]:
    """Processor, cores, memory and interpreter, in words fit for a table."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


@dataclass(frozen=True, slots=True)
class Spread:
    """What a handful of measurements showed."""

    count: int
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """The spread of `values`; None where there are none."""
        if not values:
            return None
        return cls(len(values), median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g} to {self.most:.3g}, n={self.count})"


def quantile(values: Sequence[float], share: float) -> float:
    """The least of `values` that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
