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
BLANKS = frozenset(("", "none", "null", "n/a", "na", "-", "--", "<na>", "nil", "undefined"))
_FRACTION = re.compile(r"([-+]?[\d.]+)\s*/\s*\d+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_DECIMAL_COMMA = re.compile(r"[-+]?(?:\d{1,3}(?:\.\d{3})+|\d*),\d*(?:[eE][-+]?\d+)?")


def number_of(cell: str, decimal_comma: bool = False) -> float | None:
    """The number that `cell` writes, as `1.5`, `1,024`, `97 %` or `5/100`; None for text."""
    try:
        return float(cell)
    except ValueError:
        cell = cell.strip()
    if not cell:
        return None
    if decimal_comma and _DECIMAL_COMMA.fullmatch(cell):
        cell = cell.replace(".", "").replace(",", ".")
    elif cell.endswith("%"):
        cell = cell[:-1].rstrip()
    elif _THOUSANDS.fullmatch(cell):
        cell = cell.replace(",", "")
    elif fraction := _FRACTION.fullmatch(cell):
        cell = fraction[1]
    try:
        return float(cell)
    except ValueError:
        return None


class Column:
    """The cells of one name, and the rows in which they stand."""

    __slots__ = ("first_text", "rows", "states", "values", "words")

    def __init__(self) -> None:
        self.rows = array("I")
        self.values = array("d")  # NaN where no number stands
        self.states = bytearray()
        self.words: dict[str, int] = {}  # the first distinct texts -> their state
        self.first_text: str | None = None

    def add(self, row: int, cell: object, decimal_comma: bool = False) -> None:
        """Append one cell, as a file or as JSON gave it."""
        self.rows.append(row)
        self._append(cell, decimal_comma)

    def _append(self, cell: object, decimal_comma: bool) -> None:
        value, state = math.nan, NUMBER
        if isinstance(cell, float | int) and not isinstance(cell, bool):
            value = _float(cell)
        elif isinstance(cell, str) and (number := number_of(cell, decimal_comma)) is not None:
            value = number
        elif cell is None or (text := str(cell).strip()).lower() in BLANKS:
            state = BLANK
        else:
            state = self._word(text)
        self.values.append(value)
        self.states.append(state)

    def extend(self, rows: range, cells: Sequence[str], decimal_comma: bool = False) -> None:
        """Append the cells of many rows."""
        self.rows.extend(rows)
        try:
            numbers = array("d", map(float, cells))
        except ValueError:
            self._extend_slowly(cells, decimal_comma)
        else:
            self.values.extend(numbers)
            self.states.extend(b"\1" * len(numbers))

    def _extend_slowly(self, cells: Sequence[str], decimal_comma: bool) -> None:
        if len(self.words) == MOST_WORDS and NUMBER not in self.states:  # timestamps, prose
            self.values.extend([math.nan] * len(cells))
            self.states.extend(b"\xff" * len(cells))
            return
        known: dict[str, tuple[float, int]] = {}
        for cell in cells:
            if found := known.get(cell):
                self.values.append(found[0])
                self.states.append(found[1])
            else:
                self._append(cell, decimal_comma)
                if self.states[-1] != NUMBER:
                    known[cell] = self.values[-1], self.states[-1]

    def _word(self, text: str) -> int:
        if self.first_text is None:
            self.first_text = text
        known = self.words.get(text)
        if known is None and len(self.words) < MOST_WORDS:
            known = self.words[text] = FIRST_WORD + len(self.words)
        return TEXT if known is None else known


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if number > 0 else -math.inf


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
        row = len(self.lines)
        self.lines.append(line)
        for name, cell in record.items():
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = Column()
            column.add(row, cell)

    def extend(
        self, lines: Iterable[int], names: Sequence[str], cells: Iterable[Sequence[str]],
        decimal_comma: bool = False,
    ) -> None:  # fmt: skip
        """Append many rows, given by column."""
        row = len(self.lines)
        self.lines.extend(lines)
        rows = range(row, len(self.lines))
        for name, column_cells in zip(names, cells, strict=True):
            self.columns.setdefault(name, Column()).extend(rows, column_cells, decimal_comma)
