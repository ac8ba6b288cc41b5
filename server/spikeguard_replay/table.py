"""What every reader makes of a log: rows of named cells, kept by column.

A cell is blank (not measured), a number (nan and inf are numbers), or text.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence

BLANK, NUMBER, FIRST_WORD, TEXT = 0, 1, 2, 255  # states of a cell; words in between
MOST_WORDS = 32  # distinct texts of a column that are told apart
BLANKS = frozenset(("", "none", "null", "n/a", "na", "<na>", "nil", "undefined"))
_FRACTION = re.compile(r"([-+]?[\d.]+)\s*/\s*\d+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_DECIMAL_COMMA = re.compile(r"[-+]?(?:\d{1,3}(?:\.\d{3})+|\d*),\d*(?:[eE][-+]?\d+)?")


def number_of(cell: str, decimal_comma: bool = False) -> float | None:
    """The number that `cell` writes, as `1.5`, `1,024`, `97 %` or `5/100`; None for text."""
    cell = cell.strip()
    if decimal_comma and _DECIMAL_COMMA.fullmatch(cell):
        cell = cell.replace(".", "").replace(",", ".")
    elif _THOUSANDS.fullmatch(cell):
        cell = cell.replace(",", "")
    elif fraction := _FRACTION.fullmatch(cell):
        cell = fraction[1]
    try:
        return float(cell.removesuffix("%"))
    except ValueError:
        return None


def is_blank(cell: str) -> bool:
    """Whether nothing was measured, as `None`, `N/A`, or the rule below a table's head says."""
    return cell.strip(" \t-:").lower() in BLANKS


class Column:
    """The cells of one name, a row each."""

    __slots__ = ("states", "values", "words")

    def __init__(self) -> None:
        self.values = array("d")  # NaN where no number stands
        self.states = bytearray()
        self.words: dict[str, int] = {}  # the first distinct texts -> their state

    def fill(self, rows: int) -> None:
        """Append blank cells up to so many rows."""
        if missing := rows - len(self.states):
            self.values.extend([math.nan] * missing)
            self.states.extend(bytes(missing))

    def add(self, cell: object) -> None:
        """Append one cell, as a file or as JSON gave it."""
        value, state = self._read(cell)
        self.values.append(value)
        self.states.append(state)

    def extend(self, cells: Sequence[str], decimal_comma: bool) -> None:
        """Append the cells of many rows."""
        try:
            numbers = array("d", map(float, cells))
        except ValueError:
            if len(self.words) == MOST_WORDS and NUMBER not in self.states:  # timestamps, prose
                read = dict.fromkeys(cells, (math.nan, TEXT))
            else:
                read = {cell: self._read(cell, decimal_comma) for cell in dict.fromkeys(cells)}
            self.values.extend(read[cell][0] for cell in cells)
            self.states.extend(read[cell][1] for cell in cells)
        else:
            self.values.extend(numbers)
            self.states.extend(b"\1" * len(numbers))

    def _read(self, cell: object, decimal_comma: bool = False) -> tuple[float, int]:
        """Value and state of a cell."""
        if isinstance(cell, float | int) and not isinstance(cell, bool):
            try:
                return float(cell), NUMBER
            except OverflowError:  # an integer of more than 308 digits
                return math.copysign(math.inf, cell), NUMBER
        text = "" if cell is None else str(cell).strip()
        if (number := number_of(text, decimal_comma)) is not None:
            return number, NUMBER
        if is_blank(text):
            return math.nan, BLANK
        if text not in self.words and len(self.words) < MOST_WORDS:
            self.words[text] = FIRST_WORD + len(self.words)
        return math.nan, self.words.get(text, TEXT)


class Table:
    """All rows of a log."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.lines = array("q")  # line (or entry) of the file that each row stands in
        self.notes: list[str] = []  # what was left out, for a person
        self.unread: tuple[int, str] | None = None  # the first line in which nothing was found

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, line: int, record: Mapping[str, object]) -> None:
        """Append one row."""
        for name, cell in record.items():
            self.column(name).add(cell)
        self.lines.append(line)

    def extend(
        self, lines: Iterable[int], names: Sequence[str], cells: Iterable[Sequence[str]],
        decimal_comma: bool = False,
    ) -> None:  # fmt: skip
        """Append many rows, given by column."""
        for name, column in zip(names, cells, strict=True):
            self.column(name).extend(column, decimal_comma)
        self.lines.extend(lines)

    def column(self, name: str) -> Column:
        """The column of a name, as long as the table."""
        column = self.columns.setdefault(name, Column())
        column.fill(len(self.lines))
        return column
