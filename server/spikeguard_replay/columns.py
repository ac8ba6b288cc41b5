"""The columns of a table as arrays over its rows, and how they are found by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spikeguard_cli.command import CommandFailed
from spikeguard_replay import names
from spikeguard_replay.log import Flags, Floats
from spikeguard_replay.table import FIRST_WORD, NUMBER, Column, Table

MOST_SHOWN = 12  # columns in a sentence


class Cells(NamedTuple):
    """One column, a cell a row."""

    states: NDArray[np.uint8]  # what kind of cell it is (`table.py`)
    values: Floats  # NaN where no number stands
    words: dict[str, int]  # the first distinct texts -> their state

    @property
    def measured(self) -> Flags:
        """In which rows a number stands."""
        found: Flags = self.states == NUMBER
        return found


class Columns(dict[str, Cells]):
    """All columns of a log, in the rows that count."""

    def __init__(self, name: str, table: Table) -> None:
        super().__init__((one, _cells(table.column(one))) for one in table.columns)
        self.name, self.unread = name, table.unread
        self.lines = np.frombuffer(table.lines, np.int64)
        self.short = {one: names.canonical(one) for one in self}

    def keep(self, rows: Flags) -> None:
        """Let only these rows count."""
        if not rows.all():
            self.lines = self.lines[rows]
            for name, cells in self.items():
                self[name] = Cells(cells.states[rows], cells.values[rows], cells.words)

    def rows_of(self, name: str) -> int:
        """How many numbers a column holds."""
        return int(self[name].measured.sum())

    def numeric(self, text: float = 0.1) -> list[str]:
        """Columns that hold numbers, and at most `text` times as many texts."""
        most = {name: text * self.rows_of(name) for name in self}
        return [n for n in self if most[n] and (self[n].states >= FIRST_WORD).sum() <= most[n]]

    def named(self, ours: str) -> list[str]:
        """Columns of numbers that have one of the names of a signal, the likeliest first."""
        order = {name: n for n, name in enumerate(names.NAMES.get(ours, (ours,)))}
        bare = {n: names.without_fillers(self.short[n], ours) for n in self.numeric(text=1.0)}
        found = [name for name, called in bare.items() if called in order]
        return sorted(found, key=lambda name: (order[bare[name]], len(self.short[name])))

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
        near = [name for name in self.numeric() if short and short in self.short[name]]
        if len(same or near) == 1:
            return (same or near)[0]
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
        """The columns in a sentence."""
        shown = [name for name in self if name not in set(but)]
        found = [f"`{n}` (text)" if self[n].words else f"`{n}`" for n in shown[:MOST_SHOWN]]
        if len(shown) > MOST_SHOWN:
            found.append(f"{len(shown) - MOST_SHOWN} more columns")
        return ", ".join(found)


def _cells(column: Column) -> Cells:
    states: NDArray[np.uint8] = np.frombuffer(column.states, np.uint8)
    return Cells(states, np.frombuffer(column.values, np.float64), column.words)


def are_whole(values: Floats) -> Flags:
    """Which numbers can be steps."""
    with np.errstate(invalid="ignore"):
        found: Flags = (values >= 0) & (values < 2**53) & (values == np.floor(values))
    return found
