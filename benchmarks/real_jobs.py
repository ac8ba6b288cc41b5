"""spikeguard in training loops that nobody here wrote: `python -m benchmarks.real_jobs`.

A row is a job, a column a promise. Each row runs as real processes with real text, a server on a
socket detects with the product's own monitor and orders; a probe inside the job, outside the guard,
writes down what was trained on and how the bits stand.

Public repositories are not installed by this benchmark: clone them and name their folders, e.g.
`git clone https://github.com/karpathy/nanoGPT` and `--nanogpt nanoGPT`, and
`https://github.com/karpathy/nanochat` for `--nanochat`. Their code stays there.
Packages that are no dependency of this project (torchtitan) go by pip into an environment of their
own under `--cache`, which is kept for the next time. `--gpu`: the rows that need a GPU instead,
`--at-once` of them side by side.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.real_jobs_cells import MEASURES, QUICK, Lengths, Runs
from benchmarks.real_jobs_rows import GPU_ROWS, ROWS, Places, Row, Unavailable, versions
from benchmarks.report import command_line, machine, say, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows that are asked for and print them."""
    options = _options(arguments)
    rows = GPU_ROWS if options.gpu else ROWS
    places = Places(options.cache, options.nanogpt, options.nanochat)
    lengths = QUICK if options.quick else Lengths()
    found = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    known, before = found.get("rows", {}), found.get("versions", {})
    here = before | versions(places)
    report: dict[str, Any] = {"machine": machine(), "versions": here, "rows": known}
    if options.gpu and torch.cuda.is_available():
        report["device"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory(prefix="spikeguard-real-jobs-") as scratch:
        folder = options.keep or Path(scratch)
        names = options.row or _missing(rows, known, lengths)

        def measured(name: str) -> dict[str, Any]:
            return measure(rows[name], places, folder / name, lengths)

        pool = ThreadPoolExecutor(options.at_once)
        started = {pool.submit(measured, name): name for name in names}
        for done in as_completed(started):
            name = started[done]
            known[name] = done.result()
            report["rows"] = {each: known[each] for each in rows if each in known}
            if options.out:
                options.out.write_text(json.dumps(report, indent=1) + "\n")
            say(json.dumps(known[name]))
    show(report, options)
    return 0


def _missing(rows: dict[str, Row], known: dict[str, Any], lengths: Lengths) -> list[str]:
    """Rows without a measurement at this length, or at a greater one."""
    return [
        name
        for name in rows
        if "cells" not in known.get(name, {}) or known[name]["steps"] < lengths.steps
    ]


def measure(row: Row, places: Places, folder: Path, lengths: Lengths) -> dict[str, Any]:
    """All cells of one row."""
    began = time.monotonic()
    found: dict[str, Any] = {"title": row.title, "lines": row.lines, "steps": lengths.steps}
    found["measured"] = date.today().isoformat()
    try:
        command = row.command(places)
    except Unavailable as error:
        return found | {"left_out": str(error)}
    runs = Runs(command, folder, lengths)
    refused = runs.plain().refused
    if refused:
        return found | {"refused": refused}
    cells = [each(runs) for each in MEASURES]
    return found | {
        "seconds": round(time.monotonic() - began, 1),
        "cells": {cell.name: {"holds": cell.holds, "said": cell.said} for cell in cells},
    }


def _options(arguments: Sequence[str] | None) -> Namespace:
    parser = command_line("real_jobs", __doc__, "shorter runs")
    parser.add_argument(
        "--row", action="append", choices=[*ROWS, *GPU_ROWS], help="only these rows"
    )
    parser.add_argument("--gpu", action="store_true", help="the rows that need a GPU")
    parser.add_argument("--at-once", type=int, default=1, help="so many rows side by side")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--nanochat", type=Path, help="a checkout of karpathy/nanochat")
    cache = Path.home() / ".cache" / "spikeguard-real-jobs"
    parser.add_argument("--cache", type=Path, default=cache, help="environments made by pip")
    parser.add_argument(
        "--out", type=Path, help="a file for what was found; rows that are there are not run again"
    )
    parser.add_argument("--keep", type=Path, help="a folder for what the runs write")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
