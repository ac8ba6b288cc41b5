"""Runs as rows of a CSV file.

Invariants: pure. No cell is a formula: text that a spreadsheet would take for one has an apostrophe
before it (OWASP, CSV injection).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from spikeguard_server.http.bodies.run_shapes import RunBody

COLUMNS: Final = (
    "project", "name", "state", "tags", "created_at", "last_message_at", "age_s", "last_step",
    "last_loss", "last_grad_norm", "tokens_per_second", "open_incident", "open_kind", "incidents",
    "waiting_approval", "live_attempts", "archived_at",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_head() -> bytes:
    """The names of the columns."""
    return _line(COLUMNS)


def csv_row(run: RunBody) -> bytes:
    """One run."""
    return _line(_cell(getattr(run, name)) for name in COLUMNS)


def _line(cells: Iterable[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().encode()


def _cell(value: Any) -> str:
    """Empty: not measured. Numbers stay numbers, the negative ones too."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and not isinstance(value, str):
        return repr(value)
    text = " ".join(value) if isinstance(value, list) else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
