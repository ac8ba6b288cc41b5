"""How well spikes are named: destabilised runs of the trainer, each beside its twin without fault.

`python -m benchmarks.naming [--runs DIR] [--quick] [--half tuning]`. Trains what is
missing in DIR (about 30 minutes of a core), kept between calls, and scores it: the half that no
constant was chosen on, unless the other is named.
"""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.destabilised import SIGNALS, Columns, generate, read
from benchmarks.machine import machine
from benchmarks.naming_plan import (
    FORK,
    PERTURBED,
    Healthy,
    Run,
    damage,
    delta_of,
    healthy_runs,
    runs_of,
    truth,
)
from benchmarks.naming_score import Watched, peak_of, summarise, watch
from benchmarks.options import command_line

LOSS = SIGNALS.index("loss")
RUNS = Path(".spikeguard/destabilised")


def read_options(name: str, description: str | None, quick: str) -> Namespace:
    """The command line of a score of destabilised runs."""
    parser = command_line(name, description, quick)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where the runs are kept")
    parser.add_argument("--half", choices=("held_out", "tuning"), default="held_out")
    return parser.parse_args()


def main() -> int:
    """Make what is missing, score, print."""
    options = read_options("naming", __doc__, "the first two healthy runs of each seed")
    chosen = list(healthy_runs())
    chosen = chosen[:2] + chosen[6:8] if options.quick else chosen
    generate(options.runs, chosen, partial(half_of, options))
    print(json.dumps(_report(options, chosen), indent=1))
    return 0


def _report(options: Namespace, chosen: Sequence[Healthy]) -> dict[str, Any]:
    folder = options.runs
    delta = _delta(folder, chosen)
    half = [run for healthy in chosen for run in half_of(options, healthy)]
    whole = [_rows(folder, run) for run in half]
    seen = [_watched(folder, run, delta) for run in half]
    found = [watch(one, rows) for one, rows in zip(seen, whole, strict=True)]
    return {
        "half": options.half,
        "delta": round(delta, 4),
        **summarise(found),
        "machine": machine(),
        "each": [_row(run) for run in found],
    }


def half_of(options: Namespace, healthy: Healthy) -> list[Run]:
    """Its runs in the half that is asked for."""
    return [run for run in runs_of(healthy) if run.tunes is (options.half == "tuning")]


def _row(run: Watched) -> list[Any]:
    """name, truth, final, decided, peak, detected, damage"""
    kinds = [kind.value if kind else None for kind in (run.truth, run.final, run.decided)]
    mean = round(run.damage, 4) if math.isfinite(run.damage) else None
    return [run.name, *kinds, run.peak, run.detected, mean]


def _delta(folder: Path, chosen: Sequence[Healthy]) -> float:
    pairs = [
        (read(folder, f"{healthy}_twin{number}")[:, LOSS], _twin(folder, healthy))
        for healthy in chosen
        for number in range(PERTURBED)
    ]
    return delta_of(pairs)


def _twin(folder: Path, healthy: Healthy) -> Columns:
    return read(folder, str(healthy))[FORK:, LOSS]


def _rows(folder: Path, run: Run) -> Columns:
    before = read(folder, str(run.healthy))[:FORK]
    return np.concatenate([before, read(folder, str(run))])


def _watched(folder: Path, run: Run, delta: float) -> Watched:
    loss, twin = read(folder, str(run))[:, LOSS], _twin(folder, run.healthy)
    kind = truth(run, loss, twin, delta)
    mean = float(damage(run, loss, twin).mean())
    return Watched(str(run), kind, peak_of(loss, twin), mean)


if __name__ == "__main__":
    sys.exit(main())
