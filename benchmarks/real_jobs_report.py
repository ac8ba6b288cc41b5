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
    """The table: a head, and for each row how many of its cells hold, and which do not."""
    rows: Mapping[str, Any] = report["rows"]
    return [["job", "lines", "held", "not held"], *map(_line, rows.values())]


def _line(row: Mapping[str, Any]) -> list[str]:
    head = [row["title"], str(row["lines"])]
    if "refused" in row:
        return [*head, "", f"refused at attach: {row['refused']}"]
    if "left_out" in row:
        return [*head, "", f"not run: {row['left_out']}"]
    cells = row["cells"]
    broken = [f"{name}: {cell['said']}" for name, cell in cells.items() if not cell["holds"]]
    return [*head, f"{len(cells) - len(broken)} of {len(cells)}", "; ".join(broken)]
