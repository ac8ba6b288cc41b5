"""Which column of a log is which signal.

Candidates are tried in the order of `names.NAMES`; what a column holds decides among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from spikeguard_cli.command import CommandFailed
from spikeguard_protocol import OPTIONAL_SIGNALS, STANDARD_SIGNALS, OptionalSignal
from spikeguard_replay.log import Flags, Floats, Log, LogOptions, Series, merged
from spikeguard_replay.names import (
    CLOCK,
    EPOCH,
    HELD_OUT,
    HELD_OUT_WORDS,
    LIKE,
    LOSS,
    NAMES,
    NAN,
    NO_LOSS,
    PARTS,
    PREFIX,
    PROGRESS,
    RANK,
    SKIPPED,
    SKIPPED_SO_FAR,
    STEP,
    TRAIN_WORDS,
    canonical,
)
from spikeguard_replay.table import BLANK, FIRST_WORD, NUMBER, Column, Table

ROW = "row"  # `--column step=row`: rows are counted
MOST_SHOWN = 12  # columns in a sentence


def log_of(name: str, form: str, table: Table, options: LogOptions) -> Log:
    """The log that `table` holds; raises `CommandFailed`."""
    return _Choice(name, form, table, options).log()


class _Kind(Enum):
    """How the numbers of a column run."""

    NONE = auto()  # they count no steps
    GOOD = auto()  # they grow, but where a run goes on from a checkpoint
    ANEW = auto()  # they start anew each epoch
    COARSE = auto()  # most rows repeat the one before


@dataclass
class _Choice:
    name: str
    form: str
    table: Table
    options: LogOptions
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def log(self) -> Log:
        table = self.table
        self.canonical = {name: canonical(name) for name in table.columns}
        self.kept = np.ones(len(table), bool)
        self.dense: dict[str, tuple[NDArray[np.uint8], Floats]] = {}
        self.counts: dict[str, tuple[int, int]] = {}
        self._one_rank()
        self._training_rows()
        loss = self._loss()
        others = self._others(loss)
        if loss is None and "grad_norm" not in others:
            raise self._no_loss()
        self.base = self._measured(loss if loss is not None else others["grad_norm"])
        if loss is None:
            self.notes.append("no loss in it")
        for column in others.values():  # a row may say why it has no loss
            self.base |= self._measured(column)
        step, steps = self._step(loss)
        chosen = {STEP: step, **({} if loss is None else {LOSS: loss}), **others}
        for ours, theirs in chosen.items():
            if theirs in table.columns:
                self._check_text(ours, theirs)
        self._tell_left_out(set(chosen.values()))
        signals = {ours: self._series(theirs) for ours, theirs in chosen.items() if ours != STEP}
        self._add_skipped(signals)
        log = Log(
            self.name, self.form, steps[self.base], signals, chosen, self.left_out,
            [*table.notes, *self.notes],
        )  # fmt: skip
        return log if step == ROW else merged(log)

    # Rows.

    def _one_rank(self) -> None:
        """Of lines by several ranks, those of the lowest are kept."""
        for name in (RANK, PREFIX):
            if name not in self.table.columns:
                continue
            column, here = self._numbers(name), self._measured(name)
            ranks = np.unique(column[here])
            if 1 < len(ranks) <= here.sum() / 4:
                self.kept &= ~here | (column == ranks[0])
                self.left_out.append(f"lines of {len(ranks) - 1} other ranks")
            if len(ranks) <= here.sum() / 4:  # else it counts steps
                del self.table.columns[name]

    def _training_rows(self) -> None:
        """Where a column of words says which rows are of training, the others are dropped."""
        for name, column in self.table.columns.items():
            words = {word.lower(): state for word, state in column.words.items()}
            held_out = [words[word] for word in words.keys() & HELD_OUT_WORDS]
            if held_out and (words.keys() & TRAIN_WORDS or set(words) <= HELD_OUT_WORDS):
                dropped = self.kept & np.isin(self._states(name), held_out)
                if dropped.sum() == self.kept.sum():
                    continue
                self.kept &= ~dropped
                said = "/".join(sorted(words.keys() & HELD_OUT_WORDS))
                self.left_out.append(f"{dropped.sum():,} rows of `{name}` = {said}")

    # Columns.

    def _loss(self) -> str | None:
        if LOSS in self.options.columns:
            return self._asked(LOSS)
        found = self._named(LOSS)
        if not found:
            like = [name for name in self._numeric() if LIKE[LOSS].search(self.canonical[name])]
            like = [name for name in like if not NO_LOSS.search(self.canonical[name])]
            found = [name for name in sorted(like, key=self._doubt) if self._rows_of(name) > 2]
        counts = {name: self._rows_of(name) for name in found}
        enough = [name for name in found if counts[name] > max(counts.values()) // 50]
        if enough:
            if HELD_OUT.search(self.canonical[enough[0]]):
                self.notes.append("no loss of training, that of evaluation is taken")
            return enough[0]
        others = [name for name in self._numeric() if not self._is_axis(name)]
        others = [name for name in others if not self._only_grows(name)]
        if len(others) == 1 and self._rows_of(others[0]) > 2:
            self.notes.append(f"`{others[0]}` is its only signal")
            return others[0]
        return None

    def _rows_of(self, name: str) -> int:
        return self._counts(name)[0]

    def _doubt(self, name: str) -> tuple[bool, bool, int]:
        """How doubtful it is that a column named somehow like a loss is the loss."""
        short = self.canonical[name]
        return bool(HELD_OUT.search(short)), bool(PARTS.search(short)), len(short)

    def _is_axis(self, name: str) -> bool:
        short = self.canonical[name]
        return short in NAMES[STEP] or bool(CLOCK.search(short)) or bool(LIKE[STEP].search(short))

    def _only_grows(self, name: str) -> bool:
        """Whether a column of whole numbers grows from row to row, as steps do."""
        values = self._numbers(name)[self._measured(name)]
        return bool(_are_whole(values).all() and (np.diff(values) > 0).all())

    def _others(self, loss: str | None) -> dict[str, str]:
        """The signals beside the loss, and the columns to be watched."""
        found: dict[str, str] = {}
        for ours in dict.fromkeys((*STANDARD_SIGNALS, *OPTIONAL_SIGNALS, *NAMES)):
            if ours in (STEP, LOSS, OptionalSignal.STEP_SKIPPED):
                continue
            if ours in self.options.columns:
                found[ours] = self._asked(ours)
                continue
            named = self._named(ours)
            if not named and ours in LIKE:
                like = [name for name in self._numeric() if LIKE[ours].search(self.canonical[name])]
                named = [name for name in like if not HELD_OUT.search(self.canonical[name])]
            named = [name for name in named if name != loss and name not in found.values()]
            if named:
                found[ours] = named[0]
        for wanted in self.options.watch:
            if wanted not in found and wanted not in (STEP, LOSS):
                found[wanted] = self._known(wanted, f"to watch `{wanted}`")
        return found

    def _named(self, ours: str) -> list[str]:
        """Columns of numbers that have one of the names of a signal, the likeliest first."""
        order = {name: n for n, name in enumerate(NAMES.get(ours, (ours,)))}
        found = [name for name in self._numeric(text=1.0) if self.canonical[name] in order]
        return sorted(found, key=lambda name: (order[self.canonical[name]], name != ours))

    def _numeric(self, text: float = 0.1) -> list[str]:
        """Columns that hold numbers, and at most `text` times as many texts."""
        found = []
        for name in self.table.columns:
            if name not in self.counts:
                self.counts[name] = self._counts(name)
            numbers, texts = self.counts[name]
            if numbers and texts <= text * numbers:
                found.append(name)
        return found

    def _asked(self, ours: str) -> str:
        return self._known(self.options.columns[ours], f"for {ours}")

    def _known(self, theirs: str, purpose: str) -> str:
        """The column that a person names; raises `CommandFailed`."""
        if theirs in self.table.columns:
            return theirs
        short = canonical(theirs)
        same = [name for name in self.table.columns if self.canonical[name] == short]
        near = [name for name in self._numeric() if short and short in self.canonical[name]]
        if len(same or near) == 1:
            return (same or near)[0]
        raise CommandFailed(
            f"{self.name}: no column `{theirs}` {purpose} (found {self._found()}): name another"
        )

    def _check_text(self, ours: str, theirs: str) -> None:
        states = self._states(theirs)
        if ours == STEP and LOSS in self.options.columns:
            states = np.where(self.base, states, BLANK)
        bad = self.kept & (states >= FIRST_WORD)
        if bad.any():
            row = int(np.argmax(bad))
            column = self.table.columns[theirs]
            text = next((w for w, state in column.words.items() if state == states[row]), "text")
            raise CommandFailed(
                f"{self.name}, line {self.table.lines[row]}, column `{theirs}`: {text[:80]!r} is "
                "no number: write a number, nan, inf, or leave it blank"
            )

    # The step.

    def _step(self, loss: str | None) -> tuple[str, NDArray[np.int64]]:
        """The column that counts steps, and the steps of all rows."""
        if (asked := self.options.columns.get(STEP)) is not None:
            if asked == ROW and ROW not in self.table.columns:
                return self._rows()
            return self._asked_step(self._asked(STEP))
        named = self._named(STEP)
        numeric = self._numeric()
        like = [name for name in numeric if LIKE[STEP].search(self.canonical[name])]
        last = [name for name in named if self.canonical[name] in (PROGRESS, EPOCH, "x", "index")]
        order = [name for name in named if name not in last]
        order += [name for name in like if name not in named] + last
        if loss is not None and not any(self.canonical[name] != EPOCH for name in order):
            order += [name for name in numeric if name != loss and not self._is_axis(name)]
        anew = coarse = None
        for name in order:
            kind = self._kind(name, loss)
            if kind is _Kind.GOOD:
                if self.canonical[name] == EPOCH:
                    self.notes.append("epochs as steps")
                return name, self._kept_steps(name)
            if kind is _Kind.ANEW and anew is None:
                anew = name
            if kind is _Kind.COARSE and coarse is None and self.canonical[name] != EPOCH:
                coarse = name
        if anew is not None:
            return anew, self._counted_on(anew)
        return (coarse, self._kept_steps(coarse)) if coarse is not None else self._rows()

    def _kind(self, name: str, loss: str | None) -> _Kind:
        """How the numbers of a column run in the rows that hold the loss."""
        rows = self.base if loss is None else self._measured(loss)
        here = rows & self._measured(name)
        steps = self._numbers(name)[here]
        steps = steps[_are_whole(steps)]
        if here.sum() < 0.9 * rows.sum() or len(steps) < 0.99 * here.sum() or not len(steps):
            return _Kind.NONE
        moves = np.diff(steps)
        back = np.flatnonzero(moves < 0)
        if len(moves) and (moves != 0).mean() < 0.5:
            return _Kind.COARSE
        least = steps[0] + max(1.0, np.median(moves[moves > 0])) if (moves > 0).any() else steps[0]
        if len(back) > 1 and (steps[back + 1] <= least).all():
            return _Kind.ANEW
        if len(back) == 1 and steps[back[0] + 1] <= least and self._epochs(name) is not None:
            return _Kind.ANEW
        if len(back) > max(3, len(steps) // 20):
            return _Kind.NONE
        return _Kind.GOOD

    def _kept_steps(self, name: str) -> NDArray[np.int64]:
        """The steps of a column; rows without one are left out."""
        values = self._numbers(name)
        here = self._measured(name) & self.base & _are_whole(values)
        if missing := int((self.base & ~here).sum()):
            self.left_out.append(f"{missing:,} rows without a whole `{name}`")
        self.base = here
        return np.where(here, values, 0).astype(np.int64)

    def _counted_on(self, name: str) -> NDArray[np.int64]:
        """Steps of a column that starts anew each epoch, counted on over epochs."""
        steps = self._kept_steps(name)
        rows = np.flatnonzero(self.base)
        length = steps[rows].max() + (steps[rows].min() == 0)
        epochs = self._epochs(name)
        if epochs is None:
            epochs = np.zeros(len(steps))
            epochs[rows[1:]] = np.cumsum(np.diff(steps[rows]) < 0)
        steps[rows] += ((epochs[rows] - epochs[rows[0]]) * length).astype(np.int64)
        self.notes.append(f"`{name}` starts anew each epoch, counted on")
        return steps

    def _epochs(self, name: str) -> Floats | None:
        """The epoch of each row, where a column says it in whole numbers and grows as `name` goes
        back."""
        for other in self._numeric():
            if self.canonical[other].split("_")[0] in (EPOCH, "ep") or EPOCH in other.lower():
                here = self._measured(other) & self._measured(name) & self.base
                epochs, steps = self._numbers(other), self._numbers(name)[here]
                back = np.diff(steps) < 0
                covered = here.sum() >= 0.9 * (self.base & self._measured(name)).sum()
                if (
                    _are_whole(epochs[here]).all()
                    and covered
                    and (np.diff(epochs[here])[back] > 0).all()
                ):
                    return np.where(np.isfinite(epochs), epochs, 0)
        return None

    def _asked_step(self, name: str) -> tuple[str, NDArray[np.int64]]:
        here = self._measured(name) & self.base
        values = self._numbers(name)
        bad = here & ~_are_whole(values)
        if bad.any():
            row = int(np.argmax(bad))
            raise CommandFailed(
                f"{self.name}, line {self.table.lines[row]}, column `{name}`: {values[row]:g} is "
                f"not a whole step number: name another column, or count rows: --column step={ROW}"
            )
        return name, self._kept_steps(name)

    def _rows(self) -> tuple[str, NDArray[np.int64]]:
        self.notes.append("no steps in it, rows are counted from 1")
        return ROW, np.cumsum(self.base)

    # The outcome.

    def _series(self, name: str) -> Series:
        values = self._numbers(name)[self.base]
        if self.canonical.get(name, "").endswith("_ms"):
            values = values / 1000.0
        return Series(values, self._measured(name)[self.base])

    def _add_skipped(self, signals: dict[str, Series]) -> None:
        """What the tool says of skipped and NaN iterations, as signals of their rows."""
        skipped = self._count(SKIPPED)
        so_far = self._count(SKIPPED_SO_FAR)
        if skipped is None and so_far is not None:
            grown = np.diff(so_far.values, prepend=so_far.values[:1])
            skipped = Series(grown, so_far.measured)
        if skipped is not None and (skipped.values[skipped.measured] > 0).any():
            flags = (np.where(skipped.measured, skipped.values, 0) > 0).astype(float)
            signals[OptionalSignal.STEP_SKIPPED.value] = Series(flags, skipped.measured)
        nan = self._count(NAN)
        if nan is None or (LOSS not in signals and skipped is None):
            return
        # Megatron-LM leaves out the loss of a line whose iterations all were skipped, or whose
        # loss was NaN: with none skipped, it was NaN.
        none_skipped = skipped is not None and skipped.measured & (skipped.values == 0)
        was_nan = nan.measured & ((nan.values > 0) | none_skipped)
        loss = signals.get(LOSS) or Series(np.full(len(nan.values), np.nan), np.zeros_like(was_nan))
        hidden = was_nan & ~loss.measured
        if hidden.any():
            self.notes.append(f"{hidden.sum():,} rows without a loss count as NaN")
            values = np.where(hidden, np.nan, loss.values)
            signals[LOSS] = Series(values, loss.measured | hidden)

    def _count(self, names: Sequence[str]) -> Series | None:
        for name, short in self.canonical.items():
            if short in names and self._measured(name)[self.base].any():
                return Series(self._numbers(name)[self.base], self._measured(name)[self.base])
        return None

    def _tell_left_out(self, used: set[str]) -> None:
        counts = (*SKIPPED, *SKIPPED_SO_FAR, *NAN)
        unused = [
            self._called(name, column)
            for name, column in self.table.columns.items()
            if name not in used and self.canonical[name] not in counts
        ]
        shown = unused[:MOST_SHOWN]
        if len(unused) > MOST_SHOWN:
            shown.append(f"{len(unused) - MOST_SHOWN} more columns")
        self.left_out = [*shown, *self.left_out]

    def _called(self, name: str, column: Column) -> str:
        return f"`{name}`" + (" (text)" if column.words else "")

    def _found(self) -> str:
        names = [self._called(name, column) for name, column in self.table.columns.items()]
        more = f", {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        return ", ".join(names[:MOST_SHOWN]) + more or "none"

    def _no_loss(self) -> CommandFailed:
        numbers = [name for name in self._numeric() if not self._is_axis(name)]
        head = f"{self.name}: no column that is known as the loss"
        if numbers:
            column = quote(f"loss={max(numbers, key=self._rows_of)}")
            again = f"spikeguard replay {quote(self.name)} --column {column}"
            return CommandFailed(f"{head} (found {self._found()}). Next: `{again}`")
        if self.table.unread is not None:
            line, text = self.table.unread
            return CommandFailed(
                f"{head}: no line with `loss: 1.5`, `loss=1.5` or the like; line {line} is "
                f"{text.strip()[:120]!r} (found {self._found()})"
            )
        return CommandFailed(f"{head} in {len(self.table)} rows (found {self._found()})")

    def _states(self, name: str) -> NDArray[np.uint8]:
        return self._dense(name)[0]

    def _numbers(self, name: str) -> Floats:
        return self._dense(name)[1]

    def _dense(self, name: str) -> tuple[NDArray[np.uint8], Floats]:
        """States and values of all rows."""
        if name not in self.dense:
            column = self.table.columns[name]
            states = np.zeros(len(self.table), np.uint8)
            values = np.full(len(self.table), np.nan)
            rows = np.frombuffer(column.rows, np.uint32).astype(np.intp)
            states[rows] = np.frombuffer(column.states, np.uint8)
            values[rows] = np.frombuffer(column.values, np.float64)
            self.dense[name] = states, values
        return self.dense[name]

    def _measured(self, name: str) -> Flags:
        found: Flags = (self._states(name) == NUMBER) & self.kept
        return found

    def _counts(self, name: str) -> tuple[int, int]:
        """Numbers and texts of a column in the rows that are kept."""
        column = self.table.columns[name]
        rows = np.frombuffer(column.rows, np.uint32).astype(np.intp)
        states = np.frombuffer(column.states, np.uint8)[self.kept[rows]]
        return int((states == NUMBER).sum()), int((states >= FIRST_WORD).sum())


def _are_whole(values: Floats) -> Flags:
    """Which numbers can be steps."""
    with np.errstate(invalid="ignore"):
        found: Flags = (values >= 0) & (values < 2**53) & (values == np.floor(values))
    return found
