"""CSV, TSV and their dialects: a header, then a row a step; exports of W&B's panels.

Read by the standard library's `csv`: 3.4 s and 57 MB for 1,000,000 rows of five columns. pandas and
polars take 0.2 s, but tell no line of what is no number, and judging takes longer than reading.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile, islice, pairwise
from typing import Any, Final, TextIO

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.log import Table, is_blank, number_of, run_of, with_point
from spikeguard_replay.names import LOSS, NAMES, STEP, canonical, without_fillers
from spikeguard_replay.objects import flat, python_values

ONE_COLUMN: Final = "\x1f"  # which no log holds: a line is a cell
FORMS: Final = {  # by delimiter
    ",": "CSV", ";": "CSV with `;`", "\t": "TSV", "|": "CSV", " ": "a table",
    ONE_COLUMN: "one column",
}  # fmt: skip
NO_CELLS: Final = ("#", "sep=")  # how comments begin, and Excel's line about the delimiter
SAMPLE: Final = 40  # lines from which the dialect is told
CHUNK: Final = 10_000  # rows turned into columns at once
_KNOWN: Final = frozenset((*NAMES[STEP], *NAMES[LOSS]))


@dataclass(frozen=True)
class Dialect:
    """How a text is cut into cells."""

    delimiter: str
    header: bool  # whether the first row names the columns
    decimal_comma: bool

    def is_title(self, row: Sequence[str]) -> bool:
        """Whether a row above the header is text in one cell alone, blank, or a comment."""
        filled = [cell for cell in row if cell.strip()]
        alone = len(filled) == 1 < len(row) and number_of(filled[0]) is None
        return not filled or alone or row[0].startswith(NO_CELLS)

    def rows(self, lines: Iterator[str] | TextIO) -> Iterator[list[str]]:
        """The cells of every line."""
        if self.delimiter == " ":
            words = (line.split() for line in lines)
            top = list(islice(words, 2))
            if len(top) == 2 and len(top[1]) == len(top[0]) + 1:  # rows begin with their numbers
                top[0].insert(0, "")
            return chain(top, words)
        rows = csv.reader(lines, delimiter=self.delimiter, skipinitialspace=True, strict=False)
        return ([with_point(cell) for cell in row] for row in rows) if self.decimal_comma else rows


def dialect_of(head: str, whole: bool) -> Dialect | None:
    """The dialect of a text that begins with `head`; None where it is no table.

    A last line that may be cut is not looked at, unless `head` is the `whole` text.
    """
    lines = head.splitlines()[: None if whole else -1]
    lines = [line for line in lines if line.strip() and not line.startswith(NO_CELLS)][:SAMPLE]
    scored = [_scored(lines, delimiter) for delimiter in FORMS]
    return max(scored, key=lambda one: one[0])[1]


def _scored(lines: Sequence[str], delimiter: str) -> tuple[int, Dialect | None]:
    """How many columns hold numbers, cut so; -1 and None where it is no table."""
    no_table, cut = (-1, None), Dialect(delimiter, header=True, decimal_comma=False)
    rows = list(dropwhile(cut.is_title, (row for row in cut.rows(iter(lines)) if any(row))))
    head = rows[0] if rows else []
    known = len({without_fillers(canonical(cell), LOSS) for cell in head} & _KNOWN) > 1
    body = [row for row in rows[1:] if len(row) == len(head)]
    if not body or len(body) < 0.8 * (len(rows) - 1):
        known = known and delimiter != " "  # a header; its rows are to come, or to be refused
        return (0, cut) if known else no_table
    if len(head) < 2 and any({*with_point(row[0])} & {*",;\t|"} for row in rows):
        return no_table
    columns = list(zip(*body, strict=True))
    dotted = [_numeric(cells) for cells in columns]
    with_comma = [_numeric([with_point(cell) for cell in cells]) for cells in columns]
    text = " ".join(cell for row in body for cell in row)
    comma = (sum(with_comma), text.count(",")) > (sum(dotted), text.count("."))
    numeric = with_comma if comma else dotted
    header = all(number_of(with_point(cell)) is None for cell in head)
    odd = delimiter in (" ", ONE_COLUMN) and not known
    if not any(numeric) or ((odd or not header) and not all(numeric)):
        return no_table
    if delimiter == "," and len(head) == 2 and not header and _one_number(columns):
        return no_table
    return sum(numeric), Dialect(delimiter, header, comma)


def _one_number(columns: Sequence[Sequence[str]]) -> bool:
    """Whether two columns are the halves of a number with a decimal comma, as `2,504`: the first
    counts no steps."""
    before, after = columns
    halves = [number.lstrip("-").isdecimal() for number in (*before, *after)]
    return all(halves) and not all(int(one) < int(other) for one, other in pairwise(before))


def _numeric(cells: Sequence[str]) -> bool:
    written = [cell for cell in cells if not is_blank(cell)]
    numbers = sum(number_of(cell) is not None for cell in written)
    return bool(written) and numbers >= 0.7 * len(written)


def read_delimited(name: str, text: TextIO, dialect: Dialect, run: str | None) -> Table:
    """Every row of `text`; raises `CommandFailed`."""
    table = Table()
    reader = dialect.rows(text)
    first, title, line = [""], [""], 0
    while dialect.is_title(first):
        title, first, line = first, next(reader), line + 1
    names = [cell.strip() for cell in first]
    if not dialect.header:
        names = [cell for cell in (title[0].lstrip("# "), *title[1:]) if cell] if title else []
        if len(names) != len(first):  # as numpy's savetxt writes them
            names = [f"column {n}" for n in range(1, len(first) + 1)]
            table.notes.append("no header: columns are numbered")
        table.extend([line], names, [[cell] for cell in first])
        first = []
    kept = _kept(name, names, run)
    table.extend((), kept.values(), ([] for _ in kept))
    again: list[int] = []  # lines that are the header
    odd: list[tuple[int, int]] = []  # lines of another length, and their cells

    def whole_rows() -> Iterator[tuple[int, list[str]]]:
        nonlocal line
        for line, row in enumerate(reader, start=line + 1):  # noqa: B020
            line = getattr(reader, "line_num", line)
            if row and row == first:
                again.append(line)
            elif row and first and not len(table) and all(number_of(cell) is None for cell in row):
                table.notes.append(f"line {line} holds no numbers (units?) and is left out")
            elif len(row) == len(names):
                yield line, row
            elif row and not row[0].startswith(NO_CELLS):
                odd.append((line, len(row)))

    rows = whole_rows()
    try:
        while chunk := list(islice(rows, CHUNK)):
            cells = list(zip(*(row for _, row in chunk), strict=True))
            lines = [number for number, _ in chunk]
            found: dict[str, Sequence[Any]] = {name: cells[at] for at, name in kept.items()}
            for name in [one for one, column in found.items() if column[0].lstrip()[:1] == "{"]:
                found |= _unfolded(name, found.pop(name))
            table.extend(lines, found, found.values())
    except csv.Error as error:
        raise CommandFailed(f"{name}, after line {line}: {error}: mend or remove it") from None
    if len(odd) > max(1, len(table) // 20):
        at, cells_there = odd[0]
        raise CommandFailed(
            f"{name}, line {at}: {cells_there} cells under {len(names)} columns: "
            "leave a cell blank where nothing was logged"
        )
    table.tell_left_out(again, 0, "that are the header again")
    table.tell_left_out([at for at, _ in odd], line, "of another length")
    return table


def _unfolded(name: str, cells: Sequence[str]) -> dict[str, list[Any]]:
    """The columns of the objects that the cells of a column are, as JSON or printed dicts."""
    values = map(_object, cells)
    records = [dict(flat({name: one})) if isinstance(one, dict) else {} for one in values]
    return {key: [one.get(key) for one in records] for key in dict.fromkeys(chain(*records))}


def _object(cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return python_values(cell)


def _kept(name: str, names: Sequence[str], run: str | None) -> dict[int, str]:
    """Which cells are kept, and under which names.

    Of a W&B panel's export, whose columns are named `RUN - METRIC`, those of one run are, without
    extremes.
    """
    owned = [one.rpartition(" - ") for one in names]
    found = dict(enumerate(names))
    if len(names) > 1 and all(owner for owner, _, _ in owned[1:]):
        chosen = run_of(name, {owner: owner for owner, _, _ in owned if owner}, run)
        found = {
            at: metric
            for at, (owner, _, metric) in enumerate(owned)
            if owner in ("", chosen) and not metric.endswith(("__MIN", "__MAX"))
        }
    for at, one in found.items():
        if not one or list(found.values()).index(one) < list(found).index(at):  # blank, or again
            found[at] = f"{one or 'column'} {at + 1}"
    return found
