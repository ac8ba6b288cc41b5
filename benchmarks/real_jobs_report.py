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
    """The table: a head, and a line for each way in which rows held, with the rows' titles."""
    by_fault: dict[str, list[str]] = {}
    for row in report["rows"].values():
        by_fault.setdefault(_fault(row), []).append(f"{row['title']} ({row['lines']})")
    return [
        ["did not hold", "jobs (lines added)"],
        *([k, "; ".join(v)] for k, v in by_fault.items()),
    ]


def _fault(row: Mapping[str, Any]) -> str:
    if "refused" in row:
        return f"refused at attach: {row['refused']}"
    if "left_out" in row:
        return f"not run: {row['left_out']}"
    broken = (f"{name}: {cell['said']}" for name, cell in row["cells"].items() if not cell["holds"])
    return "; ".join(broken) or "nothing"
