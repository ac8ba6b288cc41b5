"""Which column of a log is which signal.

Candidates are tried in the order of `names.NAMES`; what a column holds decides among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from spikeguard_cli.command import CommandFailed
from spikeguard_core.detection.own_signals import LOSS_SCALE
from spikeguard_protocol import OPTIONAL_SIGNALS, STANDARD_SIGNALS, OptionalSignal
from spikeguard_replay import names
from spikeguard_replay.log import (
    NUMBER,
    Cells,
    Columns,
    Floats,
    Log,
    LogOptions,
    Table,
    are_whole,
    count_pairs_once,
    merged,
    take_held_once,
)
from spikeguard_replay.names import LOSS, STEP
from spikeguard_replay.steps import ROW, Steps
from spikeguard_replay.stores import metric_table

SIGNALS = dict.fromkeys((*STANDARD_SIGNALS, *OPTIONAL_SIGNALS, *names.NAMES))
MOST_FOLLOW = 4  # losses under one step, where a tool prints several
SMOOTH = 1.9  # moves over four rows to one; 2 for a mean over four rows, 1.0 to 1.55 for a loss
FEWEST_MOVES = 100
FEWEST_EPOCHS, LONG_EPOCH = 3, 40  # rows; in shorter ones a mean over 20 rows moves alike
NO_LOSS_ROWS = 8  # at the end of a table, from which on it is told
COUNTS = (*names.SKIPPED, *names.SKIPPED_SO_FAR, *names.NAN)


def log_of(name: str, form: str, table: Table, options: LogOptions) -> Log:
    """The log that `table` holds; raises `CommandFailed`."""
    columns, left_out, notes = Columns(name, table), list[str](), list(table.notes)
    _keep_one_rank(columns, left_out)
    _keep_training(columns, left_out)
    if (metrics := metric_table(columns)) is not None:
        columns = Columns(name, metrics)
    asked = {ours: columns.asked(theirs, f"for {ours}")
             for ours, theirs in options.columns.items() if ours != STEP}  # fmt: skip
    loss = asked.get(LOSS) or _loss(columns, notes)
    if loss is not None:
        _keep_measured(columns, loss, left_out)
        _carry_steps(columns, loss)
    chosen = ({} if loss is None else {LOSS: loss}) | _others(columns, loss, asked, options.watch)
    if not chosen.keys() & {LOSS, "grad_norm"}:
        raise _no_loss(columns)
    if loss is None:
        notes.append("no loss in it")
    if LOSS not in asked:
        for theirs in chosen.values():
            columns.check(theirs)
    rare: list[str] = []  # of a console's other lines
    if form == "console output":
        most = max(columns.rows_of(theirs) for theirs in chosen.values())
        rare = [name for name in columns if columns.cells_of(name) < most / 10]
    ends = columns[loss].measured if loss is not None else np.ones(len(columns.lines), bool)
    lost = len(ends) - 1 - int(np.flatnonzero(ends).max(initial=-1))
    if form != "console output" and lost >= NO_LOSS_ROWS:
        notes.append(f"the last {lost:,} rows have no loss: a blank or null may stand for NaN")
    # A row may say why it has no loss, so every row with one of the signals counts.
    columns.keep(np.any([columns[theirs].measured for theirs in chosen.values()], axis=0))
    judged = columns[loss if loss is not None else chosen["grad_norm"]].measured
    steps = Steps(columns, judged, loss, options.columns.get(STEP))
    for theirs in [*chosen.values(), *({steps.name} & columns.keys())]:
        columns.check(theirs)
    if missing := len(judged) - len(steps.rows):
        left_out.append(f"{missing:,} rows without a whole `{steps.name}`")
    columns.keep(steps.rows)
    signals = {ours: _signal(columns, theirs) for ours, theirs in chosen.items()}
    signals = {ours: cells for ours, cells in signals.items() if cells.measured.any()}
    taken = {STEP: steps.name, **{ours: chosen[ours] for ours in signals}}
    _add_skipped(columns, signals, notes, steps.values)
    for name in [one for one in columns if columns.short[one] == names.EPOCH and LOSS in signals]:
        _take_apart(signals, notes, steps.values, columns[name].values)
    known = [name for name, short in columns.short.items() if short in COUNTS]
    known += [*taken.values(), *rare, names.EVALUATION]
    if unused := columns.listed(but=known):
        left_out.insert(0, unused)
    log = Log(name, form, steps.values, signals, taken, left_out, [*notes, *steps.notes])
    if steps.name == ROW:
        count_pairs_once(log)
    log = merged(log)
    for name in (LOSS, "grad_norm"):
        if name in log.signals:
            take_held_once(log, name)
    if loss is not None and LOSS in signals:
        smooth = _is_running_mean(signals[LOSS])
        if smooth or (smooth is None and names.AVERAGES.search(columns.short[loss])):
            says = f"`{loss}` {'moves like' if smooth else 'is, by its name,'} a running mean"
            log.notes.append(f"{says}: in one, a spike shows late and small")
    return log


def _carry_steps(columns: Columns, loss: str) -> None:
    """A step that is printed in a line of its own, or in the first of a few, holds for those that
    follow it."""
    judged = columns[loss].measured
    for name in columns.like(STEP):
        own = columns[name].measured
        if (own & judged).sum() >= 0.9 * judged.sum():
            return
        said = np.maximum.accumulate(np.where(own, np.arange(len(own)), -1))
        rows, follow = np.unique(said[judged & (said >= 0)], return_counts=True)
        if follow.sum() < 0.9 * judged.sum() or not 1 <= np.median(follow) <= MOST_FOLLOW:
            continue
        alike = (follow == np.median(follow)).mean()
        if alike >= 0.9 and max((follow == 1).mean(), judged[rows].mean()) >= 0.9:
            states = np.where(said >= 0, NUMBER, columns[name].states).astype(np.uint8)
            columns[name] = columns[name].at(said)._replace(states=states)
            return


def _keep_one_rank(columns: Columns, left_out: list[str]) -> None:
    """Of lines by several ranks, those of the lowest are kept."""
    for name in [one for one, short in columns.short.items() if short in names.RANKS]:
        here, numbers = columns[name].measured, columns[name].values
        ranks = np.unique(numbers[here])
        if len(ranks) > here.sum() / 4:  # it counts steps
            continue
        if len(ranks) > 1:
            columns.keep(~here | (numbers == ranks[0]))
            left_out.append(f"lines of {len(ranks) - 1} other ranks")
        del columns[name], columns.short[name]


def _keep_training(columns: Columns, left_out: list[str]) -> None:
    """Where a column of words says which rows are of evaluation, they are dropped."""
    for name in list(columns):
        words = {word.lower(): state for word, state in columns[name].words.items()}
        held_out = words.keys() & set(names.HELD_OUT_WORDS)
        dropped = np.isin(columns[name].states, [words[word] for word in held_out])
        losses = [*columns.named(LOSS), *columns.like(LOSS)]
        kept = [columns[one].measured[~dropped] for one in losses]
        if 0 < dropped.sum() < len(dropped) and (not kept or np.any(kept)):
            columns.keep(~dropped)
            said = f"rows of `{name}` = {'/'.join(sorted(held_out))}"
            left_out.append(f"{dropped.sum():,} {name if name == names.EVALUATION else said}")


def _keep_measured(columns: Columns, loss: str, left_out: list[str]) -> None:
    """Where NaN stands for a blank cell, rows of evaluation are dropped.

    It does where a signal of evaluation is NaN, but for rows in which the loss is.
    """
    for name in [n for n, short in columns.short.items() if names.HELD_OUT.search(short)]:
        here = np.isfinite(columns[name].values)
        no_loss = columns[loss].measured & np.isnan(columns[loss].values)
        if here.any() and no_loss[here].all() and columns[name].measured[~here].any():
            columns.keep(~here)
            left_out.append(f"{here.sum():,} rows of `{name}` without a loss")


def _loss(columns: Columns, notes: list[str]) -> str | None:
    short = columns.short
    found = columns.named(LOSS)
    if not found:
        like = [n for n in columns.like(LOSS) if not names.NO_LOSS.search(short[n])]
        like = [n for n in like if columns.rows_of(n) > 2]
        few = max(map(columns.rows_of, like), default=0) // 50
        found = sorted(like, key=lambda n: (columns.rows_of(n) <= few, *_doubts(short[n])))
        alike = [n for n in found if _doubts(short[n])[:3] == _doubts(short[found[0]])[:3]]
        if len(alike) > 1:
            said = f"--column loss={quote(alike[1])}"
            notes.append(f"`{alike[0]}` is one of {len(alike)} losses; for another: {said}")
    if found:
        if names.HELD_OUT.search(short[found[0]]):
            notes.append("no loss of training, that of evaluation is taken")
        return found[0]
    if len(others := _signals(columns)) == 1 and columns.rows_of(others[0]) > 2:
        only = columns[others[0]]
        good = names.HIGH_IS_GOOD.search(short[others[0]])
        if not good and np.ptp(only.values[only.measured]):
            notes.append(f"`{others[0]}` is its only signal")
            return others[0]
    return None


def _doubts(short: str) -> tuple[bool, bool, bool, int]:
    """What speaks against a column named somehow like a loss, the weightiest first."""
    against = (names.HELD_OUT, names.PARTS, names.AVERAGES)
    held_out, part, average = (bool(one.search(short)) for one in against)
    return held_out, part, average, len(short)


def _signals(columns: Columns) -> list[str]:
    """Columns that are no steps: they hold fractions, or do not always grow."""
    measured = {name: columns[name].values[columns[name].measured] for name in columns.signals()}
    return [
        name
        for name, found in measured.items()
        if not (are_whole(found).all() and (np.diff(found) > 0).all())
    ]


def _is_running_mean(loss: Cells) -> bool | None:
    """Whether it moves farther in four rows than in one, unlike a loss with noise of its own; None
    where that cannot be told."""
    values = loss.values[loss.measured & np.isfinite(loss.values)]
    values = values[len(values) // 4 :]  # behind the steep begin
    if len(values) < FEWEST_MOVES:
        return None
    one, four = (values[apart:] - values[:-apart] for apart in (1, 4))
    near, far = (np.median(np.abs(moves - np.median(moves))) for moves in (one, four))
    return None if near == 0.0 else bool(far > SMOOTH * near)


def _take_apart(
    signals: dict[str, Cells], notes: list[str], steps: NDArray[np.int64], epochs: Floats
) -> None:
    """Put in place of a mean since its epoch began what each row was by itself. So taken, the late
    rows of an epoch move as far as the early; those of any other loss would move ever farther."""
    loss, anew = signals[LOSS], np.diff(np.floor(epochs), prepend=np.nan) != 0
    longest = np.diff(np.flatnonzero(anew), append=len(anew)).max(initial=0)
    known = loss.measured.all() and (np.diff(steps) >= 0).all()
    if anew.sum() < FEWEST_EPOCHS or longest < LONG_EPOCH or not known:
        return
    begins = np.maximum.accumulate(np.where(anew, steps, 0))
    place = 1 + (steps - begins) / max(1.0, np.median(np.diff(steps)))
    apart = np.diff(place, prepend=0)
    with np.errstate(all="ignore"):  # a step that comes twice, a loss that is not finite
        rows = np.where(apart > 0, np.diff(place * loss.values, prepend=0) / apart, loss.values)
        moves, part = np.abs(np.diff(np.nan_to_num(rows))), place[1:] / place.max()
        late = np.median(moves[part > 0.75]) / np.median(moves[(part <= 0.25) & ~anew[1:]])
    if 0.6 < late < 1.25:
        signals[LOSS] = Cells(loss.states, rows)
        notes.append("the loss is a mean since its epoch began: its rows are taken apart")


def _others(
    columns: Columns, loss: str | None, asked: dict[str, str], watch: Sequence[str]
) -> dict[str, str]:
    """The signals beside the loss, and the columns to be watched."""
    found: dict[str, str] = {}
    for ours in SIGNALS:
        if ours in (STEP, LOSS, OptionalSignal.STEP_SKIPPED):
            continue
        free = [n for n in columns.named(ours) or _like(columns, ours, loss) if n != loss]
        if ours in asked or free:
            found[ours] = asked.get(ours) or free[0]
    # Megatron-LM logs a scale of 1 where it trains in bf16, and few digits make a rate 0.0000.
    for ours, least in ((LOSS_SCALE, 1.0), ("lr", 0.0)):
        if ours in found and not (columns[found[ours]].values > least).any():
            del found[ours]
    for wanted in watch:
        if wanted not in found and wanted not in (STEP, LOSS):
            found[wanted] = columns.asked(wanted, f"to watch `{wanted}`")
    return found


def _like(columns: Columns, ours: str, loss: str | None) -> list[str]:
    """Columns called somehow like a signal of training, in at least a tenth of its rows."""
    like = columns.like(ours)
    most = max(map(columns.rows_of, [*like, *([] if loss is None else [loss])]), default=0)
    trained = [name for name in like if not names.HELD_OUT.search(columns.short[name])]
    return [name for name in trained if columns.rows_of(name) >= 0.1 * most]


def _signal(columns: Columns, name: str) -> Cells:
    scale = 1000.0 if columns.short[name].endswith("_ms") else 1.0
    return Cells(columns[name].states, columns[name].values / scale)


def _count(columns: Columns, known: Sequence[str]) -> Cells | None:
    counts = [_signal(columns, name) for name, short in columns.short.items() if short in known]
    return next((one for one in counts if one.measured.any()), None)


def _add_skipped(
    columns: Columns, signals: dict[str, Cells], notes: list[str], steps: NDArray[np.int64]
) -> None:
    """What the tool says of skipped and NaN iterations, as signals of their rows, of these `steps`.

    A row of several iterations of which some were skipped has an update, unlike a skipped step.
    """
    skipped, nan = _count(columns, names.SKIPPED), _count(columns, names.NAN)
    if skipped is None and (so_far := _count(columns, names.SKIPPED_SO_FAR)) is not None:
        counts = np.nan_to_num(so_far.values)
        skipped = Cells(so_far.states, np.diff(counts, prepend=counts[:1]))
    if skipped is not None and (flags := skipped.measured & (skipped.values > 0)).any():
        apart = np.diff(steps, prepend=2 * steps[:1] - steps[1:2])
        shares = np.where(flags, skipped.values / np.maximum(apart, 1), 0.0)
        signals[OptionalSignal.STEP_SKIPPED.value] = Cells(skipped.states, shares)
    if nan is None or (LOSS not in signals and skipped is None):
        return
    # Megatron-LM leaves out the loss of a line whose iterations all were skipped, or whose loss was
    # NaN: with none skipped, it was NaN.
    hidden = nan.values > 0
    if skipped is not None:
        hidden |= nan.measured & skipped.measured & (skipped.values == 0)
    loss = signals.get(LOSS) or Cells(np.zeros_like(nan.states), np.full(len(hidden), np.nan))
    hidden &= ~loss.measured
    if hidden.any():
        notes.append(f"{hidden.sum():,} rows without a loss count as NaN")
        states = np.where(hidden, NUMBER, loss.states).astype(np.uint8)
        signals[LOSS] = Cells(states, np.where(hidden, np.nan, loss.values))


def _no_loss(columns: Columns) -> CommandFailed:
    for name, short in columns.short.items():
        if names.without_fillers(short, LOSS) in names.NAMES[LOSS]:
            columns.check(name)  # it holds text
    if columns and not len(columns.lines):
        return CommandFailed(f"{columns.name}: a header, and no row below it yet")
    if not columns:
        return CommandFailed(
            f"{columns.name}: no names with numbers in it: give CSV, JSON, or lines such as "
            "`step: 10 loss: 2.5`"
        )
    known = {n for ours, called in names.NAMES.items() if ours != LOSS for n in called}
    least = max(3, max(map(columns.rows_of, columns)) / 2)
    likely = [
        n for n in _signals(columns) or columns.signals()
        if columns.short[n] != "data"  # the time to load it
        and not names.HIGH_IS_GOOD.search(columns.short[n]) and columns.rows_of(n) >= least
    ]  # fmt: skip
    moves = {n: bool(np.ptp(columns[n].values[columns[n].measured])) for n in likely}
    likeliest = max(likely, key=lambda n: (columns.short[n] not in known, moves[n]), default="NAME")
    again = f"spikeguard replay {quote(columns.name)} --column {quote(f'loss={likeliest}')}"
    return CommandFailed(
        f"{columns.name}: no column that is known as the loss (found {columns.listed()}). "
        f"If one of them is the loss, name it: `{again}`"
    )
