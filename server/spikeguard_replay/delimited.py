"""CSV, TSV and their dialects: a header, then a row a step; exports of W&B's panels.

Read by the standard library's `csv`. For 1,000,000 rows of five columns, on two busy cores, it
takes 3.4 s of a processor and 57 MB; pandas 0.2 s (and 0.4 s to import), 180 MB, 84 MB installed;
polars 0.14 s, 140 MB, 182 MB installed. Neither tells the line of a cell that is text, of a row of
another length or of a header that comes again, and judging takes longer than reading.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from typing import Final, TextIO

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.names import LOSS, NAMES, STEP, canonical
from spikeguard_replay.table import BLANKS, Table, number_of

DELIMITERS: Final = (",", ";", "\t", "|", " ")
SAMPLE: Final = 40  # lines from which the dialect is told
CHUNK: Final = 10_000  # rows turned into columns at once
_COMMA: Final = re.compile(r"\d,\d")
_POINT: Final = re.compile(r"\d\.\d")

_KNOWN: Final = frozenset((*NAMES[STEP], *NAMES[LOSS]))
BETWEEN: Final = " - "  # of run and metric in a W&B panel's export
EXTREMES: Final = ("__MIN", "__MAX")


@dataclass(frozen=True)
class Dialect:
    """How a text is cut into cells."""

    delimiter: str
    header: bool  # whether the first row names the columns
    decimal_comma: bool

    def rows(self, lines: Iterator[str] | TextIO) -> Iterator[list[str]]:
        """The cells of every line."""
        if self.delimiter == " ":
            return (line.split() for line in lines)
        return csv.reader(lines, delimiter=self.delimiter, skipinitialspace=True, strict=False)


def dialect_of(head: str, whole: bool) -> Dialect | None:
    """The dialect of a text that begins with `head`; None where it is no table.

    A last line that may be cut is not looked at, unless `head` is the `whole` text.
    """
    lines = head.splitlines()
    if not whole:
        del lines[-1:]
    lines = [line for line in lines if line.strip() and not _comment(line)][:SAMPLE]
    best: tuple[int, Dialect] | None = None
    for delimiter in DELIMITERS:
        found = _score(lines, delimiter)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return None if best is None else best[1]


def _comment(line: str) -> bool:
    return line.startswith("#")


def _score(lines: Sequence[str], delimiter: str) -> tuple[int, Dialect] | None:
    """How many columns hold numbers, cut so; None where it is no table."""
    whole = Dialect(delimiter, True, False)
    try:
        rows = [row for row in whole.rows(iter(lines)) if any(row)]
    except csv.Error:
        return None
    if len(rows) < 2 or len(rows[0]) < 2:
        return None
    width = len(rows[0])
    body = [row for row in rows[1:] if len(row) == width]
    if not body or (len(body) < 0.8 * (len(rows) - 1) and len(body) < len(rows) - 2):
        known = {canonical(cell) for cell in rows[0]} & _KNOWN
        return (0, whole) if len(known) > 1 else None  # a header whose rows are to be refused
    comma = delimiter != "," and _commas(body)
    numeric = [_numeric(cells, comma) for cells in zip(*body, strict=True)]
    if not any(numeric) or (delimiter == " " and not all(numeric)):
        return None
    header = not any(number_of(cell, comma) is not None for cell in rows[0])
    if not header and not all(numeric):
        return None
    return sum(numeric), Dialect(delimiter, header, comma)


def _commas(rows: Sequence[Sequence[str]]) -> bool:
    text = " ".join(cell for row in rows for cell in row)
    return len(_COMMA.findall(text)) > len(_POINT.findall(text))


def _numeric(cells: Sequence[str], comma: bool) -> bool:
    written = [cell for cell in cells if cell.strip().lower() not in BLANKS]
    numbers = sum(number_of(cell, comma) is not None for cell in written)
    return bool(written) and numbers >= 0.7 * len(written)


def read_delimited(name: str, text: TextIO, dialect: Dialect, run: str | None) -> Table:
    """Every row of `text`; raises `CommandFailed`."""
    table = Table()
    reader = dialect.rows(text)
    first, line = [""], 0
    while not any(cell.strip() for cell in first) or _comment(first[0]):
        first = next(reader)
        line += 1
    names = [cell.strip() for cell in first]
    if not dialect.header:
        names = [f"column {n}" for n in range(1, len(first) + 1)]
        table.notes.append("no header: columns are numbered")
        table.extend([line], names, [[cell] for cell in first], dialect.decimal_comma)
    kept, columns = _columns(name, names, run)
    odd: list[tuple[int, int]] = []  # lines of another length, and their cells
    again = 0
    while rows := _next_rows(name, reader, line):
        last = line + len(rows)
        lines: Sequence[int] = range(line + 1, last + 1)
        if {len(row) for row in rows} != {len(names)} or (dialect.header and first in rows):
            repeated = [row == first and dialect.header for row in rows]
            again += sum(repeated)
            odd += [
                (at, len(row))
                for at, row in zip(lines, rows, strict=True)
                if row and len(row) != len(names) and not _comment(row[0])
            ]
            fits = [len(row) == len(names) and not r for row, r in zip(rows, repeated, strict=True)]
            lines, rows = list(compress(lines, fits)), list(compress(rows, fits))
        line = getattr(reader, "line_num", last)
        cells = list(zip(*rows, strict=True)) or [()] * len(names)
        table.extend(lines, columns, (cells[at] for at in kept), dialect.decimal_comma)
    if again:
        table.notes.append(f"the header stands {again} more time{'s' if again > 1 else ''}")
    _tell_odd(name, table, odd, len(names), line)
    return table


def _next_rows(name: str, reader: Iterator[list[str]], line: int) -> list[list[str]]:
    try:
        return list(islice(reader, CHUNK))
    except csv.Error as error:
        raise CommandFailed(f"{name}, after line {line}: {error}: mend or remove it") from None


def _tell_odd(
    name: str, table: Table, odd: Sequence[tuple[int, int]], width: int, last: int
) -> None:
    """Lines of another length are left out, and told; refused where they are many."""
    if not odd:
        return
    line, cells = odd[0]
    if len(odd) == 1 and line >= last and cells < width and len(table):
        table.notes.append(f"the last line ({line}) is cut off and left out")
    elif len(odd) > max(1, len(table) // 20):
        raise CommandFailed(
            f"{name}, line {line}: {cells} cells under {width} columns: "
            "leave a cell blank where nothing was logged"
        )
    else:
        table.notes.append(f"{len(odd)} lines of another length left out, the first {line}")


def _columns(name: str, names: Sequence[str], run: str | None) -> tuple[list[int], list[str]]:
    """Which cells are kept, and under which names."""
    unwrapped = _panel(name, names, run) if _is_panel(names) else list(names)
    kept = [at for at, one in enumerate(unwrapped) if one is not None]
    found: list[str] = []
    for at in kept:
        one = unwrapped[at] or f"column {at + 1}"
        while one in found:
            one += " (again)"
        found.append(one)
    return kept, found


def _is_panel(names: Sequence[str]) -> bool:
    """Whether it is a W&B panel's export: an axis, and columns named after runs."""
    return any(name.endswith(EXTREMES) for name in names) or (
        len(names) > 1 and all(BETWEEN in name for name in names[1:])
    )


def _panel(name: str, names: Sequence[str], run: str | None) -> list[str | None]:
    """The metric of each column; None for another run's, an axis of its own, and extremes."""
    owners = [one.rpartition(BETWEEN)[0] for one in names]
    runs = [one for one in dict.fromkeys(owners) if one]
    if len(runs) > 1 and run is None:
        raise CommandFailed(
            f"{name}: {len(runs)} runs: name one with --run NAME (found {', '.join(runs[:10])})"
        )
    if run is not None and run not in runs:
        raise CommandFailed(f"{name}: no run `{run}` (found {', '.join(runs[:10])}): name another")
    found: list[str | None] = []
    for one, owner in zip(names, owners, strict=True):
        metric = one.rpartition(BETWEEN)[2]
        mine = not owner or (owner == (run or owner) and metric != "_step")
        found.append(metric if mine and not one.endswith(EXTREMES) else None)
    return found
