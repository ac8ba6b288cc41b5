"""A training log, read: a series of numbers a signal, and what was taken for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from spikeguard_cli.command import CommandFailed

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
FEWEST_PAIRED = 16  # rows
ROUNDING = 1e-3  # of a value


@dataclass(frozen=True)
class LogOptions:
    """What a person says of a log, so that it need not be guessed."""

    columns: Mapping[str, str] = field(default_factory=dict)  # our name -> the file's
    run: str | None = None  # of a file that holds several
    watch: Sequence[str] = ()  # columns to be kept beside the known signals


@dataclass(frozen=True)
class Series:
    """One signal: a value a row, and whether it was measured there."""

    values: Floats
    measured: Flags

    def cells(self, rows: slice) -> list[float | None]:
        """The values of some rows; None where nothing was measured."""
        found = self.values[rows].astype(object)
        found[~self.measured[rows]] = None
        cells: list[float | None] = found.tolist()
        return cells


@dataclass
class Log:
    """A training log, read."""

    name: str
    form: str  # such as `CSV`
    steps: NDArray[np.int64]
    signals: dict[str, Series]
    columns: dict[str, str]  # our name of each signal -> the file's
    left_out: list[str]  # columns and rows that were passed over
    notes: list[str]  # what else a person should know

    def __len__(self) -> int:
        return len(self.steps)

    def keep(self, rows: slice) -> None:
        """Let only some rows count."""
        self.steps = self.steps[rows]
        for name, one in self.signals.items():
            self.signals[name] = Series(one.values[rows], one.measured[rows])

    def described(self) -> str:
        """One line: what was taken for what, and what was left out."""
        taken = ", ".join(f"{ours} from `{theirs}`" for ours, theirs in self.columns.items())
        parts = [f"{self.name}: read as {self.form}, {len(self):,} rows; {taken}", *self.notes]
        if self.left_out:
            parts.append(f"left out: {', '.join(self.left_out)}")
        return "; ".join(parts)

    def curve(self, name: str) -> tuple[NDArray[np.int64], Floats]:
        """Steps and finite values of a signal; NaN where the log goes back to an earlier step."""
        series = self.signals.get(name, Series(np.empty(0), np.empty(0, bool)))
        rows = np.flatnonzero(series.measured & np.isfinite(series.values))
        steps, values = self.steps[rows], series.values[rows]
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
    for name, series in log.signals.items():
        values = np.full(int(begins.sum()), np.nan)
        measured = np.zeros(len(values), bool)
        rows = np.flatnonzero(series.measured)
        finite = np.isfinite(series.values[rows])
        for part in (rows[finite][::-1], rows[~finite]):
            values[group[part]] = series.values[part]
            measured[group[part]] = True
        log.signals[name] = Series(values, measured)
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
