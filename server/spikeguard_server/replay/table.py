"""CSV logs: a header, then a row a step."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from spikeguard_cli.command import CommandFailed
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.replay.columns import STEP, Columns, guess_columns
from spikeguard_server.replay.numbers import parse_number, whole_step
from spikeguard_server.replay.wandb import is_export, unwrapped
from spikeguard_server.replay.wanted import LogOptions


def read_table(
    path: Path,
    text: str,
    wanted: LogOptions = LogOptions(),  # noqa: B008
) -> tuple[list[Sample], Columns]:
    """Every row of the CSV `text`; raises `CommandFailed` and `csv.Error`."""
    reader = csv.reader(io.StringIO(text, newline=""))
    header = [name.strip() for name in next(reader, [])]
    rows: Iterator[list[str]] = reader
    if is_export(header):
        rows, header = _panel(path, rows, header, wanted.run)
    wanted.check(path, header)
    columns = guess_columns(header, wanted.columns)
    _check(path, header, columns)
    return list(_rows(path, rows, header, columns)), columns


def _panel(
    path: Path, rows: Iterator[list[str]], header: list[str], run: str | None
) -> tuple[Iterator[list[str]], list[str]]:
    """Rows and header without what a W&B panel adds; a row of another length is left as it is."""
    names = unwrapped(path, header, run)
    kept = [n for n, name in enumerate(names) if name is not None]
    cut = ([r[n] for n in kept] if len(r) == len(names) else r for r in rows)
    return cut, [name for name in names if name is not None]


def _check(path: Path, header: list[str], columns: Columns) -> None:
    for name in columns.missing():
        found = ", ".join(header[:20]) or "nothing"
        raise CommandFailed(
            f"{path}, line 1: no column `{name}` (found {found}): "
            "name the columns step,loss[,grad_norm,...]"
        )
    if len(set(header)) != len(header):
        raise CommandFailed(f"{path}, line 1: a column stands there twice: name each once")


def _rows(
    path: Path, reader: Iterator[list[str]], header: list[str], columns: Columns
) -> Iterator[Sample]:
    at = header.index(columns.chosen[STEP])
    signals = [columns.signal(name) for name in header]
    for line, cells in enumerate(reader, start=2):
        if not any(cell.strip() for cell in cells):
            continue
        place = f"{path}, line {line}"
        if len(cells) != len(header):
            raise CommandFailed(
                f"{place}: {len(cells)} cells under {len(header)} columns: "
                "leave a cell blank where nothing was logged"
            )
        values = {
            signals[index]: parse_number(f"{place}, column `{header[index]}`", cell)
            for index, cell in enumerate(cells)
            if index != at and cell.strip()
        }
        yield Sample(whole_step(f"{place}, column `{header[at]}`", cells[at]), values)
