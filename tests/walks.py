"""How much code a walk through the product may run: what docs/architecture.md says."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def within(counts: tuple[int, int], walk: str) -> bool:
    """Whether modules and functions are at most what the page says of that walk."""
    text = (ROOT / "docs/architecture.md").read_text()
    row = re.search(rf"^\| {walk} \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert row, walk
    return counts[0] <= int(row[1]) and counts[1] <= int(row[2])
