"""spikeguard in training loops that nobody here wrote: `python -m benchmarks.real_jobs`.

A row is a job, a column a promise. Each row runs as real processes with real text, a server on a
socket detects with the product's own monitor and orders; a probe inside the job, outside the guard,
writes down what was trained on and how the bits stand.

Public repositories are not installed by this benchmark: clone them and name their folders, e.g.
`git clone https://github.com/karpathy/nanoGPT` and `--nanogpt nanoGPT` (or NANOGPT), and
`https://github.com/karpathy/nanochat` for `--nanochat` (or NANOCHAT). Their code stays there.
Packages that are no dependency of this project (torchtitan) go by pip into an environment of their
own under `--cache`, which is kept for the next time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.real_jobs_cells import MEASURES, NAMES, QUICK, Cell, Lengths, Runs
from benchmarks.real_jobs_rows import ROWS, Places, Unavailable


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows that are asked for and print them."""
    options = _options(arguments)
    places = Places.of(options.cache, options.nanogpt, options.nanochat)
    report: dict[str, Any] = {"machine": machine(), "quick": options.quick, "rows": {}}
    with tempfile.TemporaryDirectory(prefix="spikeguard-real-jobs-") as scratch:
        folder = options.keep or Path(scratch)
        for name in options.row or ROWS:
            lengths = QUICK if options.quick else Lengths()
            report["rows"][name] = measure(name, places, folder / name, lengths)
            if not options.json:
                print(row_text(name, report["rows"][name]), flush=True)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        print(table(report["rows"]))
    return 0


def measure(name: str, places: Places, folder: Path, lengths: Lengths) -> dict[str, Any]:
    """All cells of one row."""
    row, began = ROWS[name], time.monotonic()
    try:
        command = row.command(places)
    except Unavailable as error:
        return {"lines": row.lines, "left_out": str(error)}
    runs = Runs(command, folder, lengths)
    refused = runs.plain().refused
    if refused:
        return {"lines": row.lines, "refused": refused}
    cells = [each(runs) for each in MEASURES]
    seconds = round(time.monotonic() - began, 1)
    return {
        "lines": row.lines,
        "seconds": seconds,
        "cells": {cell.name: {"holds": cell.holds, "said": cell.said} for cell in cells},
    }


def row_text(name: str, found: dict[str, Any]) -> str:
    """A row in words, a line a cell."""
    head = f"{ROWS[name].title}: {found['lines']} lines added"
    if "left_out" in found:
        return f"{head}\n  not run: {found['left_out']}"
    if "refused" in found:
        return textwrap.fill(f"{head}\n  refused at attach: {found['refused']}", 110)
    cells = (Cell(cell, **values) for cell, values in found["cells"].items())
    return "\n".join([f"{head}, {found['seconds']} s", *(f"  {c.name}: {c}" for c in cells)])


def table(rows: dict[str, dict[str, Any]]) -> str:
    """As Markdown, for a results file."""
    lines = [f"| job | lines | {' | '.join(NAMES)} |", "| --- " * (len(NAMES) + 2) + "|"]
    for name, found in rows.items():
        if "cells" in found:
            cells = [str(Cell(cell, **found["cells"][cell])) for cell in NAMES]
        elif "refused" in found:
            cells = [f"refused at attach: {found['refused']}", *[""] * (len(NAMES) - 1)]
        else:
            cells = [f"not run: {found['left_out']}", *[""] * (len(NAMES) - 1)]
        lines.append(f"| {ROWS[name].title} | {found['lines']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_jobs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--row", action="append", choices=list(ROWS), help="only these rows")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--nanochat", type=Path, help="a checkout of karpathy/nanochat")
    cache = Path.home() / ".cache" / "spikeguard-real-jobs"
    parser.add_argument("--cache", type=Path, default=cache, help="environments made by pip")
    parser.add_argument("--keep", type=Path, help="a folder for what the runs write")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
