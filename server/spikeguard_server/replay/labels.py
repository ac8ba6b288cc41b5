"""Spikes that somebody marked in logs of their own: `file,onset_step,last_step` a line."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from spikeguard_cli.command import CommandFailed

COLUMNS = ("file", "onset_step", "last_step")
Span: TypeAlias = tuple[int, int]  # first and last step
Labels: TypeAlias = Mapping[str, Sequence[Span]]  # by the file's name below the folder


def read_labels(path: Path) -> Labels:
    """The labels in a CSV file; raises `CommandFailed` with line, field and remedy."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandFailed(f"{path}: cannot be read: {error}") from error
    if not rows or tuple(cell.strip() for cell in rows[0]) != COLUMNS:
        raise CommandFailed(f"{path}: line 1: the columns are {','.join(COLUMNS)}")
    found = defaultdict[str, list[Span]](list)
    for line, row in enumerate(rows[1:], start=2):
        if row:
            found[row[0].strip()].append(_span(path, line, row))
    return dict(found)


def _span(path: Path, line: int, row: Sequence[str]) -> Span:
    try:
        _, first, last = row
        span = int(first), int(last)
    except ValueError:
        raise CommandFailed(
            f"{path}: line {line}: write a file's name and two whole steps"
        ) from None
    if span[0] > span[1]:
        raise CommandFailed(f"{path}: line {line}: last_step is at least onset_step: swap the two")
    return span
