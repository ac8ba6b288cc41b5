"""How the scores of destabilised runs are asked for and told: `naming` and `causes`.

Law: the half that no constant was chosen on is what is scored unless the other is named.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.naming_plan import Run

RUNS = Path(".spikeguard/destabilised")
Report = dict[str, Any]


def read_options(
    name: str,
    description: str | None,
    quick: str,
    arguments: Sequence[str] | None,
) -> Namespace:
    """The command line of `python -m benchmarks.NAME`; `quick` says what `--quick` leaves."""
    parser = ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where the runs are kept")
    parser.add_argument("--half", choices=("held_out", "tuning"), default="held_out")
    parser.add_argument("--out", type=Path, help="file for the result")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def of_half(options: Namespace, run: Run) -> bool:
    """Whether a run belongs to the half that is asked for."""
    return run.tunes is (options.half == "tuning")


def tell(report: Report, options: Namespace, table: Callable[[Report], str]) -> None:
    """Write and print the result."""
    text = json.dumps(report, indent=1)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    print(text if options.json else table(report))
