"""Whether a gradient far below Adam's second moment tells of a spike before it comes.

    python -m benchmarks.second_moment_lead [--runs DIR] [--quick] [--json]

Bai et al. (arXiv 2506.04805) see spikes begin where the squared gradient has fallen far below `v`.
Both norms are sent, so their ratio could warn. Counted on the runs that `benchmarks.naming` trains
into DIR: stretches of healthy runs in which it does, and faults with such a step among the 50
before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.destabilised import SIGNALS, Columns, generate, read
from benchmarks.machine import machine
from benchmarks.naming_options import read_options, tell
from benchmarks.naming_plan import FORK, healthy_runs, runs_of
from spikeguard_core.detection.judged import Array
from spikeguard_core.detection.noise import NORMAL_MAD

GRADIENT, MOMENT = SIGNALS.index("grad_norm"), SIGNALS.index("adam_v_norm")
SMOOTH, USUAL, AHEAD = 8, 200, 50  # steps
DEVIATIONS = (3, 4, 5)


def depths(rows: Columns) -> Array:
    """How many deviations log(g² / v), the mean of 8 steps, lies below the 200 steps before; one a
    step from the 208th on."""
    with np.errstate(divide="ignore"):
        ratio = 2 * np.log(rows[:, GRADIENT]) - np.log(rows[:, MOMENT])
    smooth = np.convolve(ratio, np.ones(SMOOTH) / SMOOTH, "valid")
    known = np.lib.stride_tricks.sliding_window_view(smooth, USUAL)[: -SMOOTH - 1]
    middle = np.median(known, axis=1)
    spread = NORMAL_MAD * np.median(np.abs(known - middle[:, None]), axis=1)
    found: Array = (middle - smooth[USUAL + SMOOTH :]) / np.maximum(spread, 1e-9)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is missing, count, print."""
    name, quick = "second_moment_lead", "two healthy runs"
    options = read_options(name, __doc__, quick, arguments, halves=False)
    chosen = list(healthy_runs())[: 2 if options.quick else None]
    generate(options.runs, chosen, runs_of)
    calm = [depths(read(options.runs, str(one))[USUAL:]) for one in chosen]
    faults = [run for healthy in chosen for run in runs_of(healthy)]
    before = [depths(read(options.runs, str(run.healthy))[:FORK])[-AHEAD:] for run in faults]
    report = {
        "machine": machine(), "faults": len(faults), "calm_steps": sum(map(len, calm)),
        "rows": [
            {
                "deviations": least,
                "calm_stretches": sum(_stretches(one >= least) for one in calm),
                "faults_led": sum(bool((one >= least).any()) for one in before),
            }
            for least in DEVIATIONS
        ],
    }  # fmt: skip
    tell(report, options, _table)
    return 0


def _stretches(low: NDArray[np.bool_]) -> int:
    return int((low[1:] & ~low[:-1]).sum())


def _table(report: dict[str, Any]) -> str:
    return "\n".join(
        f"{row['deviations']} deviations below: {row['calm_stretches']} stretches in "
        f"{report['calm_steps']:,} calm steps; before {row['faults_led']} of {report['faults']} "
        "faults"
        for row in report["rows"]
    )


if __name__ == "__main__":
    sys.exit(main())
