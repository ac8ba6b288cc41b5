"""Training logs as samples.

Law: what is blank was not measured; `nan` and `inf` were. A file that cannot be read is refused
with its line, its column and what to do about it, never half used.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from spikeguard_cli.command import CommandFailed
from spikeguard_server.domain.sample import Sample

STEP, LOSS = "step", "loss"


def read_samples(path: Path) -> list[Sample]:
    """Every row of a CSV file `step,loss[,grad_norm,...]`; raises `CommandFailed`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            return list(_rows(path, csv.reader(lines)))
    except FileNotFoundError:
        raise CommandFailed(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandFailed(f"{path}: cannot be read as CSV in UTF-8: {error}") from error


def _rows(path: Path, reader: Iterator[list[str]]) -> Iterator[Sample]:
    header = [name.strip() for name in next(reader, [])]
    for name in (STEP, LOSS):
        if name not in header:
            found = ", ".join(header) or "nothing"
            raise CommandFailed(
                f"{path}, line 1: no column `{name}` (found {found}): "
                "name the columns step,loss[,grad_norm,...]"
            )
    if len(set(header)) != len(header):
        raise CommandFailed(f"{path}, line 1: a column stands there twice: name each once")
    at = header.index(STEP)
    for line, cells in enumerate(reader, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise CommandFailed(
                f"{path}, line {line}: {len(cells)} cells under {len(header)} columns: "
                "leave a cell blank where nothing was logged"
            )
        yield _sample(f"{path}, line {line}", header, cells, at)


def _sample(place: str, header: list[str], cells: list[str], at: int) -> Sample:
    values = {
        name: _number(f"{place}, column `{name}`", cell)
        for index, (name, cell) in enumerate(zip(header, cells, strict=True))
        if index != at and cell.strip()
    }
    step = _number(f"{place}, column `{STEP}`", cells[at])
    if not 0 <= step < 2**53 or step != int(step):
        raise CommandFailed(f"{place}, column `{STEP}`: {cells[at]!r} is not a whole step number")
    return Sample(int(step), values)


def _number(place: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise CommandFailed(
            f"{place}: {cell!r} is not a number: write a number, nan, inf, or leave it blank"
        ) from None
