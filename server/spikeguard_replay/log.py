"""A log: the rows of named cells that every reader makes of it, kept by column and found by name;
and what was read of them, a series of numbers a signal.

A cell is blank (not measured), a number (nan and inf are numbers), or text.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spikeguard_cli.command import CommandFailed
from spikeguard_replay import names

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
FEWEST_PAIRED = 16  # rows
ROUNDING = 1e-3  # of a value
FEWEST_HELD = 16  # values
BLANK, NUMBER, FIRST_WORD, TEXT = 0, 1, 2, 255  # states of a cell; words in between
MOST_SHOWN = 12  # columns in a sentence
MOST_WORDS = 32  # distinct texts of a column that are told apart
BLANKS = frozenset(("", "none", "null", "n/a", "na", "<na>", "nil", "undefined"))
_FRACTION = re.compile(r"([-+]?[\d.]+)\s*/\s*\d+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_DECIMAL_COMMA = re.compile(r"[-+]?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d*)(?:,\d*)?(?:[eE][-+]?\d+)?")


def with_point(cell: str) -> str:
    """`1.024,5` as `1024.5`; what is no number with a decimal comma stays as it is."""
    if _DECIMAL_COMMA.fullmatch(cell.strip()):
        return cell.replace(".", "").replace(",", ".")
    return cell


def number_of(cell: str) -> float | None:
    """The number that `cell` writes, as `1.5`, `1,024`, `97 %` or `5/100`; None for text."""
    cell = cell.strip()
    if _THOUSANDS.fullmatch(cell):
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


class Cells(NamedTuple):
    """One column, or a signal that was read of it: a cell a row."""

    states: NDArray[np.uint8]  # what kind of cell it is
    values: Floats  # NaN where no number stands
    words: Mapping[str, int] = {}  # the first distinct texts -> their state

    @property
    def measured(self) -> Flags:
        """In which rows a number stands."""
        found: Flags = self.states == NUMBER
        return found

    def at(self, rows: Flags | NDArray[np.intp] | slice) -> Cells:
        """Those of some rows, in the order in which they are numbered."""
        return Cells(self.states[rows], self.values[rows], self.words)

    def numbers(self) -> list[float | None]:
        """The values; None where nothing was measured."""
        found = self.values.astype(object)
        found[~self.measured] = None
        numbers: list[float | None] = found.tolist()
        return numbers


@dataclass(slots=True)
class Column:
    """The cells of one name, a row each, as `Cells` has them."""

    values: array[float] = field(default_factory=lambda: array("d"))
    states: bytearray = field(default_factory=bytearray)
    words: dict[str, int] = field(default_factory=dict)

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

    def extend(self, cells: Sequence[str]) -> None:
        """Append the cells of many rows."""
        try:
            numbers = array("d", map(float, cells))
        except ValueError:
            if len(self.words) == MOST_WORDS and NUMBER not in self.states:  # timestamps, prose
                read = dict.fromkeys(cells, (math.nan, TEXT))
            else:
                read = {cell: self._read(cell) for cell in dict.fromkeys(cells)}
            self.values.extend(read[cell][0] for cell in cells)
            self.states.extend(read[cell][1] for cell in cells)
        else:
            self.values.extend(numbers)
            self.states.extend(b"\1" * len(numbers))

    def _read(self, cell: object) -> tuple[float, int]:
        """Value and state of a cell."""
        if isinstance(cell, float | int) and not isinstance(cell, bool):
            try:
                return float(cell), NUMBER
            except OverflowError:  # an integer of more than 308 digits
                return math.copysign(math.inf, cell), NUMBER
        text = "" if cell is None else str(cell).strip()
        if (number := number_of(text)) is not None:
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

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, line: int, record: Mapping[str, object]) -> None:
        """Append one row."""
        for name, cell in record.items():
            self.column(name).add(cell)
        self.lines.append(line)

    def extend(
        self, lines: Iterable[int], names: Iterable[str], cells: Iterable[Sequence[str]]
    ) -> None:
        """Append many rows, given by column."""
        for name, column in zip(names, cells, strict=True):
            self.column(name).extend(column)
        self.lines.extend(lines)

    def tell_left_out(self, lines: Sequence[int], last: int, what: str) -> None:
        """Note that `lines`, of a text of `last` lines, were left out."""
        if list(lines) == [last]:
            self.notes.append(f"the last line ({last}) is cut off and left out")
        elif lines:
            self.notes.append(f"{len(lines)} lines {what} left out, the first {lines[0]}")

    def column(self, name: str) -> Column:
        """The column of a name, as long as the table."""
        column = self.columns.setdefault(name, Column())
        column.fill(len(self.lines))
        return column


class Columns(dict[str, Cells]):
    """All columns of a log, in the rows that count."""

    def __init__(self, name: str, table: Table) -> None:
        for one in table.columns:
            column = table.column(one)
            states: NDArray[np.uint8] = np.frombuffer(column.states, np.uint8)
            self[one] = Cells(states, np.frombuffer(column.values, np.float64), column.words)
        self.name = name
        self.lines = np.frombuffer(table.lines, np.int64)
        self.short = {one: names.canonical(one) for one in self}

    def keep(self, rows: Flags | NDArray[np.intp]) -> None:
        """Let only these rows count, in the order in which they are numbered."""
        known = np.arange(len(self.lines))
        if np.array_equal(known[rows], known):  # a copy takes a third more memory
            return
        self.lines = self.lines[rows]
        for name, cells in self.items():
            self[name] = cells.at(rows)

    def rows_of(self, name: str) -> int:
        """How many numbers a column holds."""
        return int(self[name].measured.sum())

    def cells_of(self, name: str) -> int:
        """How many numbers and texts a column holds."""
        return int((self[name].states != BLANK).sum())

    def numeric(self, text: float = 0.1) -> list[str]:
        """Columns that hold numbers, and at most `text` times as many texts."""
        most = {name: text * self.rows_of(name) for name in self}
        return [n for n in self if most[n] and (self[n].states >= FIRST_WORD).sum() <= most[n]]

    def named(self, ours: str) -> list[str]:
        """Columns of numbers that have one of the names of a signal, the likeliest first."""
        order = {name: n for n, name in enumerate(names.NAMES.get(ours, (ours,)))}
        bare = {n: names.without_fillers(self.short[n], ours) for n in self.numeric(text=1.0)}
        found = [name for name, called in bare.items() if called in order]
        few = max(map(self.rows_of, found), default=0) / 10  # as in a list of settings
        return sorted(
            found, key=lambda n: (self.rows_of(n) < few, order[bare[n]], len(self.short[n]))
        )

    def like(self, ours: str) -> list[str]:
        """Columns of numbers that are called somehow like a signal."""
        pattern = names.LIKE.get(ours)
        return [n for n in self.numeric() if pattern and pattern.search(self.short[n])]

    def signals(self) -> list[str]:
        """Columns of numbers that are neither steps nor times."""
        axes = (names.CLOCK, names.LIKE[names.STEP])
        found = [n for n in self.numeric() if self.short[n] not in names.NAMES[names.STEP]]
        return [n for n in found if not any(axis.search(self.short[n]) for axis in axes)]

    def asked(self, theirs: str, purpose: str) -> str:
        """The column that a person names; raises `CommandFailed`."""
        if theirs in self:
            return theirs
        short = names.canonical(theirs)
        same = [name for name, one in self.short.items() if one == short]
        if len(same) == 1:
            return same[0]
        raise CommandFailed(
            f"{self.name}: no column `{theirs}` {purpose} (found {self.listed()}): name another"
        )

    def refused(self, name: str, row: int, why: str) -> CommandFailed:
        """The error about one cell."""
        return CommandFailed(f"{self.name}, line {self.lines[row]}, column `{name}`: {why}")

    def check(self, name: str) -> None:
        """Raise `CommandFailed` for text in a column that is used."""
        states, _, words = self[name]
        bad = np.flatnonzero(states >= FIRST_WORD)
        if len(bad):
            text = next((word for word, state in words.items() if state == states[bad[0]]), "text")
            why = f"{text[:80]!r} is no number: write a number, nan, inf, or leave it blank"
            raise self.refused(name, bad[0], why)

    def listed(self, but: Iterable[str] = ()) -> str:
        """The columns in a sentence, the fullest first."""
        hidden = set(but)
        shown = sorted((n for n in self if n not in hidden), key=lambda n: -self.cells_of(n))
        found = [f"`{n}` (text)" if self[n].words else f"`{n}`" for n in shown[:MOST_SHOWN]]
        if len(shown) > MOST_SHOWN:
            found.append(f"{len(shown) - MOST_SHOWN} more columns")
        return ", ".join(found)


def are_whole(values: Floats) -> Flags:
    """Which numbers can be steps."""
    with np.errstate(invalid="ignore"):
        found: Flags = (values >= 0) & (values < 2**53) & (values == np.floor(values))
    return found


@dataclass(frozen=True)
class LogOptions:
    """What a person says of a log, so that it need not be guessed."""

    columns: Mapping[str, str] = field(default_factory=dict)  # our name -> the file's
    run: str | None = None  # of a file that holds several
    watch: Sequence[str] = ()  # columns to be kept beside the known signals


@dataclass
class Log:
    """A training log, read."""

    name: str
    form: str  # such as `CSV`
    steps: NDArray[np.int64]
    signals: dict[str, Cells]
    columns: dict[str, str]  # our name of each signal -> the file's
    left_out: list[str]  # columns and rows that were passed over
    notes: list[str]  # what else a person should know

    def __len__(self) -> int:
        return len(self.steps)

    def described(self) -> str:
        """One line: what was taken for what, and what was left out."""
        taken = ", ".join(f"{ours} from `{theirs}`" for ours, theirs in self.columns.items())
        parts = [f"{self.name}: read as {self.form}, {len(self):,} rows; {taken}", *self.notes]
        if self.left_out:
            parts.append(f"left out: {', '.join(self.left_out)}")
        return "; ".join(parts)

    def curve(self, name: str) -> tuple[NDArray[np.int64], Floats]:
        """Steps and finite values of a signal; NaN where the log goes back to an earlier step."""
        cells = self.signals.get(name, Cells(np.empty(0, np.uint8), np.empty(0)))
        rows = np.flatnonzero(cells.measured & np.isfinite(cells.values))
        steps, values = self.steps[rows], cells.values[rows]
        back = np.flatnonzero(np.diff(steps) < 0) + 1
        return np.insert(steps, back, steps[back]), np.insert(values, back, np.nan)

    def plain(self) -> dict[str, object]:
        """As `--json` prints it."""
        return {
            "file": self.name, "format": self.form, "rows": len(self), "columns": self.columns,
            "left_out": self.left_out, "notes": self.notes,
        }  # fmt: skip


def merged(log: Log) -> Log:
    """Rows of one step that follow each other become one: of each signal the first value, unless a
    later one is not finite."""
    begins = np.diff(log.steps, prepend=log.steps[:1] - 1) != 0
    if begins.all():
        return log
    group = np.cumsum(begins) - 1
    for name, cells in log.signals.items():
        values = np.full(int(begins.sum()), np.nan)
        states = np.full(len(values), BLANK, np.uint8)
        rows = np.flatnonzero(cells.measured)
        finite = np.isfinite(cells.values[rows])
        for part in (rows[finite][::-1], rows[~finite]):
            values[group[part]] = cells.values[part]
            states[group[part]] = NUMBER
        log.signals[name] = Cells(states, values)
    log.steps = log.steps[begins]
    return log


def count_pairs_once(log: Log) -> None:
    """Count rows by two where they stand there in pairs that differ by rounding alone, as two
    handlers of a logger print them."""
    rows = np.array([one.values for one in log.signals.values()])
    with np.errstate(invalid="ignore"):
        same = ~(np.abs(np.diff(rows)) > ROUNDING * np.abs(rows[:, 1:])).any(axis=0)
    if len(log) >= FEWEST_PAIRED and same[::2].mean() > 0.95 and same[1::2].mean() < 0.5:
        log.notes.append("each row stands there twice, taken once")
        log.steps = 1 + np.arange(len(log)) // 2


def take_held_once(log: Log, name: str) -> None:
    """Where a signal is logged more often than it is measured, so that most of its values stand
    there several times, the first counts. A value that stays for longer counts as often as others
    would have been measured meanwhile."""
    cells = log.signals[name]
    rows = np.flatnonzero(cells.measured & np.isfinite(cells.values))
    values, place = cells.values[rows], np.arange(len(rows))
    begins = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
    lengths = np.diff(begins, append=len(rows))
    if len(begins) < FEWEST_HELD or (often := int(np.median(lengths))) < 2:
        return
    if (lengths % often == 0).mean() < 0.9:
        distinct, usual = len(np.unique(values[begins])) / len(begins), often
        often = int(np.quantile(lengths, 0.95))
        if distinct < 0.9 or often > 2 * usual:
            return  # few digits alone
    held = rows[(place - np.repeat(begins, lengths)) % often > 0]
    states = cells.states.copy()
    states[held] = BLANK
    log.signals[name] = Cells(states, cells.values)
    log.notes.append(f"values of `{log.columns[name]}` stand there {often} times, taken once")


def run_of(file: str, runs: Mapping[str, str], asked: str | None) -> str:
    """The key of the run that is `asked` for by key or name, else of the only one.

    Raises `CommandFailed`.
    """
    found = [key for key, name in runs.items() if asked in (None, key, name)]
    if len(found) == 1:
        return found[0]
    called = "" if asked is None else f" called `{asked}`"
    names = [name if name == key else f"{name} ({key})" for key, name in runs.items()]
    raise CommandFailed(
        f"{file}: {len(found)} runs{called}: name one with --run NAME "
        f"(found {', '.join(names[:10]) or 'none'})"
    )
