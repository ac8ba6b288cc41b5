"""What `benchmarks.real_jobs` found, in a file that goes on where it was left, and as a table.

Law: a row that was measured is kept until it is measured again; each says when, and how many steps
its runs had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Report = dict[str, Any]


def read(file: Path | None) -> Report:
    """What is there already."""
    if file is None or not file.exists():
        return {"rows": {}}
    found: Report = json.loads(file.read_text())
    return found


def write(file: Path | None, report: Report) -> None:
    if file is not None:
        file.write_text(json.dumps(report, indent=1) + "\n")


def worded(holds: bool, said: str) -> str:
    """One cell."""
    return ("yes" if holds else "NO") + (f" ({said})" if said else "")


def lines(report: Report) -> list[list[str]]:
    """The table: a head, and a line for each row, in the order in which they stand there."""
    rows: Mapping[str, Any] = report["rows"]
    names = next((list(row["cells"]) for row in rows.values() if "cells" in row), [])
    return [["job", "lines", "steps", *names], *(_line(row, names) for row in rows.values())]


def _line(row: Mapping[str, Any], names: list[str]) -> list[str]:
    if "cells" in row:
        cells = [worded(**row["cells"][name]) for name in names]
    else:
        why = (
            f"refused at attach: {row['refused']}"
            if "refused" in row
            else f"not run: {row['left_out']}"
        )
        cells = [why, *[""] * (len(names) - 1)]
    return [row["title"], str(row["lines"]), str(row["steps"]), *cells]
