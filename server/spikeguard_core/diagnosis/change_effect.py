"""What a change did to the loss: what followed it, against the trend from before it.

The trend is the one that an incident at that step is judged by, and how far it may be trusted is
reckoned as in a forecast: a part of its scale, a part of its own descent, and the noise of the
mean. That trend bends on purpose, because loss curves do; a curve that does not would seem to gain
by every change. So the distance to a straight continuation of the rows before counts as doubt too.
Of several changes the last alone is judged, as of several cures.

A rollback needs no trend: the branch that it undid and the one that is kept trained on the same
batches, so their losses are subtracted batch by batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev
from typing import Any, Final

from spikeguard_core.detection.noise import median
from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.forecast import INERTIA, NORMAL_95, clipped_mean, doubt_of
from spikeguard_core.events import Trend
from spikeguard_protocol import Signal, without_abilities
from spikeguard_protocol.findings import without_findings
from spikeguard_protocol.identity import TAGS_FACT
from spikeguard_protocol.phrases import beginning_of

FEWEST_STEPS, MOST_STEPS, PART = 40, 200, 0.2  # after a change until it is judged: of its step
BEFORE: Final = 128  # steps before it, of which the straight continuation is drawn
FEWEST_ROWS: Final = 8  # with a loss, before it, and in the second half of the steps after it
MOST_PAIRS: Final = 200  # newest batches that both branches trained on
DRIFT: Final = 1.5  # scales for each e-fold of the step: 368 of 373 intervals of calm rows held
LR_JUMP: Final = 0.05  # part by which the learning rate leaves its schedule
SHOWN_CHANGES: Final = 20  # in the words of a change
LONGEST_VALUE: Final = 100  # characters of a setting in a change; an attempt may have 64 of 2,000
# What an attempt says of itself and that changes nothing of its training.
APART: Final = {
    *("host", "update_skipper", "observe_only", "allowed_verbs", TAGS_FACT),
    *("lr_factor_least", "lr_steps_most", "skip_batches_most", "rollback_steps_most"),
    *("rollbacks_a_day", "orders_a_day"),
    "lr",  # of the schedule's step at which the attempt began: judged by what it trained with
}


class ExpectedEffect(StrEnum):
    """What whoever made a change expects of the loss."""

    LOWER = "lower"
    HIGHER = "higher"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Effect:
    """How far the loss lies above its earlier trend, or above the branch that was undone, nats."""

    step: int  # the newest that was judged
    loss: float
    error: float  # half width of the 95 % interval
    batches: int | None = None  # on which both branches were compared; None: against the trend
    least: float = -math.inf  # what of `loss` is sure, where that is more than the interval says

    @property
    def seen(self) -> bool:
        """Whether it is more than noise and a doubtful trend explain."""
        return abs(self.loss) > self.error


@dataclass(frozen=True, slots=True)
class Changed:
    """One setting and its values; None: it was not told or set. Two that are the same: it changed,
    and what it holds is secret."""

    field: str  # `world_size`, `approval.rollback.mode`
    before: Any
    after: Any


def judged_after(step: int) -> int:
    """Steps after a change until it is judged: a young run descends too fast to look far ahead."""
    return max(FEWEST_STEPS, min(MOST_STEPS, round(PART * step)))


def effect_of(
    trend: Trend | None,
    changed_at: int,
    before: Sequence[tuple[int, float]],
    rows: Sequence[tuple[int, float]],
    *,
    heads: int | None = None,
) -> Effect | str:
    """The effect of a change made after step `changed_at`, or why it is not known.

    `before` and `rows`: steps and their losses up to there and from there on; of `rows` the newer
    half is judged. `heads`: the step up to which the trend and `before` go, where a spike began
    before the change.
    """
    if trend is None or len(before) < 2 * FEWEST_ROWS:
        return "the run had trained too few steps before it for a trend, or a spike was open"
    newest = rows[-1][0] if rows else changed_at
    half = changed_at + (newest - changed_at) // 2
    judged = [value for step, value in rows if step > half]
    bad = sum(not math.isfinite(value) for _, value in rows)
    if bad:
        return f"the loss was not finite at {bad:,} of the {len(rows):,} steps that followed it"
    if len(judged) < FEWEST_ROWS:
        return f"only {len(rows):,} steps with a loss followed it"
    heads = changed_at if heads is None else heads
    return above_trend(trend, heads, before, [row for row in rows if row[0] > half])


def above_trend(
    trend: Trend,
    heads: int,
    before: Sequence[tuple[int, float]],
    rows: Sequence[tuple[int, float]],
) -> Effect:
    """How far the mean loss of `rows`, all of them finite, lies above where it was heading at step
    `heads`: by the `trend`, with which a straight continuation of the rows `before` may disagree.

    Calm curves leave their trend by as much again as their rows are noisy, for each e-fold of the
    step. Of 160 drawn spikes 148 left a lift that the interval holds, and none less than `least`:
    where the straight continuation falls more than the trend, the lift is the larger for it.
    """
    newest = rows[-1][0]
    above = clipped_mean([value - trend.at(step) for step, value in rows], trend.scale)
    bend = _straight_descent(before, heads, newest) - (trend.at(heads) - trend.at(newest))
    noise = INERTIA * trend.scale / math.sqrt(len(rows))
    drift = DRIFT * trend.scale * (math.log1p(newest) - math.log1p(trend.step))
    doubt = math.hypot(doubt_of(trend, newest), drift, noise)
    error, below = (NORMAL_95 * math.hypot(doubt, of) for of in (bend, min(bend, 0.0)))
    return Effect(newest, above, error, least=above - below)


def branch_effect(undone: Sequence[Sample], kept: Sequence[Sample]) -> Effect | str | None:
    """How far the loss of the `kept` branch lies above that of the `undone` one on the batches
    that both trained on; of those the newer half counts. None where too few are known to be the
    same; a sentence where the undone branch had no finite loss."""
    before = {
        s.batches: s.values[Signal.LOSS] for s in undone if s.batches and Signal.LOSS in s.values
    }
    common = [s for s in kept if s.batches in before and Signal.LOSS in s.values]
    newest = common[-min(MOST_PAIRS, max(FEWEST_ROWS, len(common) // 2)) :]
    if len(newest) < FEWEST_ROWS:
        return None
    pairs = [(s.values[Signal.LOSS], before[s.batches]) for s in newest if s.batches is not None]
    bad = sum(not math.isfinite(loss) for _, loss in pairs)
    if bad and all(math.isfinite(loss) for loss, _ in pairs):
        return (
            f"the loss of the branch that was undone was not finite at {bad:,} of the "
            f"{len(pairs):,} newest batches that both trained on"
        )
    differences = [a - b for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    if len(differences) < FEWEST_ROWS:
        return None
    error = NORMAL_95 * INERTIA * stdev(differences) / math.sqrt(len(differences))
    return Effect(newest[-1].step, fmean(differences), error, len(differences))


def _straight_descent(before: Sequence[tuple[int, float]], step: int, to: int) -> float:
    """How far the loss falls from `step` to `to` where it goes on as the rows before did, straight
    in the logarithm of the step: through the medians of their halves."""
    finite = [row for row in before if math.isfinite(row[1])]
    half = len(finite) // 2
    (began, older), (ended, newer) = (
        (median([math.log1p(step) for step, _ in rows]), median([value for _, value in rows]))
        for rows in (finite[:half], finite[half:])
    )
    slope = min(0.0, (newer - older) / (ended - began)) if ended > began else 0.0
    return -slope * (math.log1p(to) - math.log1p(step))


def effect_words(effect: Effect) -> str:
    """In one sentence, which claims no more than the error allows."""
    than, known = "its earlier trend", ""
    if effect.batches is not None:
        than = "that of the branch that was undone"
        known = f", on {effect.batches:,} batches that both trained on"
    if not effect.seen:
        sized = size_words(effect, "+")
        return f"no distance of the loss from {than} can be told: {sized}{known}"
    where = "above" if effect.loss > 0 else "below"
    return f"the loss lies {size_words(effect)} {where} {than}{known}"


def size_words(effect: Effect, sign: str = "") -> str:
    """`0.22 ± 0.05 nats`, to two digits of the error; with its `sign` where that is "+"."""
    known = 0.0 < effect.error < math.inf
    places = max(0, 1 - math.floor(math.log10(effect.error))) if known else 4
    loss = effect.loss if sign else abs(effect.loss)
    return f"{loss:{sign}.{places}f} ± {effect.error:.{places}f} nats"


def expectation_words(expected: ExpectedEffect, size: float | None, effect: Effect) -> str:
    """Whether what was expected came, as far as the effect is sure."""
    low, high = effect.loss - effect.error, effect.loss + effect.error
    if expected is ExpectedEffect.NONE:
        return "not as expected" if effect.seen else "as expected"
    sign = 1.0 if expected is ExpectedEffect.HIGHER else -1.0
    if not effect.seen:
        small = size is not None and not low <= sign * size <= high
        return "not as expected" if small else "too small to tell"
    if sign * effect.loss < 0:
        return "the opposite of what was expected"
    if size is not None and not low <= sign * size <= high:
        return f"as expected, but {'more' if abs(effect.loss) > size else 'less'}"
    return "as expected"


def told_effect(expected: ExpectedEffect | None, size: float | None, effect: Effect) -> str:
    """The effect, and whether it is what was expected where anything was."""
    said = effect_words(effect)
    return said if expected is None else f"{said}; {expectation_words(expected, size, effect)}"


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Changed, ...]:
    """What differs between two tables of settings, by name, in a table within by `table.name`."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    names = sorted(old.keys() | new.keys())
    each = (Changed(name, old.get(name), new.get(name)) for name in names)
    return tuple(one for one in each if one.before != one.after)


def _leaves(plain: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def trained_with(settings: Mapping[str, str], **counted: int | None) -> dict[str, Any]:
    """What an attempt trains with, by what it said of itself when it began."""
    described = without_findings(without_abilities(settings))
    told = {name: value for name, value in described.items() if name not in APART}
    return {**told, **{name: count for name, count in counted.items() if count is not None}}


def cut(change: Changed) -> Changed:
    """The change with values that are short enough to be shown."""
    before, after = (
        beginning_of(value, LONGEST_VALUE) if isinstance(value, str) else value
        for value in (change.before, change.after)
    )
    return Changed(change.field, before, after)


def learning_rate_change(before: Sequence[float], after: float) -> Changed | None:
    """Whether `after` leaves the course of the last two learning rates `before` it."""
    if len(before) < 2 or not all(math.isfinite(rate) for rate in (*before, after)):
        return None
    older, newer = before[-2:]
    expected = 2.0 * newer - older
    if abs(after - expected) <= LR_JUMP * max(abs(expected), abs(newer)):
        return None
    return Changed("lr", newer, after)


def changes_words(changes: Sequence[Changed]) -> str:
    """`world_size 8 → 16, lr 0.0003 → 0.0001`."""
    shown = [f"{c.field} {_value(c.before)} → {_value(c.after)}" for c in changes[:SHOWN_CHANGES]]
    more = len(changes) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])


def _value(value: Any) -> str:
    return "not told" if value is None else str(value)
