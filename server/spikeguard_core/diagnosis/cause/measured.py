"""Figures that the clues are read from, and whether a log's columns mean what the clues assume.

Logs define their columns differently: what calm rows contradict is asked aloud.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spikeguard_core.detection.noise import NORMAL_MAD, median
from spikeguard_core.diagnosis.evidence import (
    ADAM_BETA2,
    UNSEEN_TOKENS,
    WORST_SEQUENCE,
    Evidence,
    Trace,
)
from spikeguard_protocol import RATES_OF_GROUPS, Signal

LEAD = 3  # steps before the onset that what caused it may have struck
GRAD_NORMS = (Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value)
UPDATE_NORMS = (Signal.UPDATE_NORM.value, Signal.UPDATE_NORM_SAMPLED.value)
NEAR = 3.0  # how far an estimate from neighbouring steps may be off
SURE = 1.02  # the same where every step was measured
LEAST_DEVIATION = 0.01  # of a statistic of the tokens, as a part of it
ROUNDED = 1e-5  # of a norm: what fp32 and the digits kept cannot show
CONTRADICTED = 2  # calm rows that no log of the assumed kind can hold
PART = 0.25  # of the calm rows: one alone is enough where they are few
LEAST_BETA2 = 0.9  # smaller ones are hardly in use; of a job that does not tell its own
PINNED = 1e-4  # as a part of it: how near values lie that one limit cut off
PINNED_ROWS = 3
STRANGE = 6.0  # robust deviations of a statistic of the tokens
OFTEN = 0.125  # share of calm rows as strange, from which it says nothing
MOST_NATS = 25.0  # a token: no mean of a sequence in a run that learns anything is larger
LEAST_SHARE = 0.98  # of the mean: a largest value does not lie below it


@dataclass(frozen=True, slots=True)
class Move:
    """A change of the norm of the weights between two measurements."""

    first: int  # step of the earlier
    last: int
    before: float
    change: float  # below 0 where it shrank
    explained: float  # the most that updates in between can have changed it by
    exact: bool  # every one of them was measured

    @property
    def unexplained(self) -> bool:
        """Whether no updates can have made it: a norm changes by no more than its vector."""
        size = abs(self.change)
        if not 0.0 < size < math.inf:
            return False
        room = SURE if self.exact else NEAR
        return size > room * self.explained + ROUNDED * (self.before + size)


def usual(evidence: Evidence, name: str) -> float | None:
    """Median of a signal well before the onset."""
    trace = evidence.before.get(name, Trace())
    finite = [(step, value) for step, value in trace.rows() if math.isfinite(value)]
    early = [value for step, value in finite if step < evidence.onset_step - LEAD]
    kept = early or [value for _, value in finite]
    return median(kept) if len(kept) >= 2 else None


def ratios(evidence: Evidence, name: str) -> list[tuple[int, float]]:
    """(step, value over the usual one) from shortly before the onset on."""
    level = usual(evidence, name)
    if not level:
        return []
    rows = evidence.whole(name).rows()
    return [(s, v / level) for s, v in rows if s >= evidence.onset_step - LEAD]


def group_rates(evidence: Evidence) -> dict[int, Trace]:
    """The learning rates of parameter group 0 and of those that had another rate at some step, all
    at the steps of group 0's. A group tells its own only where it is not group 0's."""
    first = evidence.whole(Signal.LR.value)
    found = {0: first}
    for number, name in enumerate(RATES_OF_GROUPS, 1):
        if own := dict(evidence.whole(name).rows()):
            found[number] = Trace(first.steps, [own.get(s, rate) for s, rate in first.rows()])
    return found


def first_measured(evidence: Evidence, names: tuple[str, ...]) -> str | None:
    """The first of `names` that there is a usual value of."""
    return next((name for name in names if usual(evidence, name)), None)


def gradient_growth(evidence: Evidence) -> list[tuple[int, float]] | None:
    """(step, growth of the gradient norm); None where none is measured, or a limit cut it off."""
    name = first_measured(evidence, GRAD_NORMS)
    return None if name is None or _limit_of(evidence, name) else ratios(evidence, name)


def excesses(evidence: Evidence) -> list[tuple[int, float]]:
    """(step, loss over its trend in scales) from the onset on; not finite where the loss is not."""
    trend = evidence.trend
    if trend is None:
        return []
    rows = evidence.after.get(Signal.LOSS.value, Trace()).rows()
    return [(step, (value - trend.at(step)) / trend.scale) for step, value in rows]


def moves(evidence: Evidence, *, calm: bool = False) -> list[Move]:
    """Changes of param_norm around the onset, or well before it, both ends finite and what updates
    explain of it known."""
    near = evidence.onset_step - LEAD
    groups = group_rates(evidence)
    largest = map(max, zip(*(each.values for each in groups.values()), strict=True))
    rates, norms = Trace(groups[0].steps, list(largest)), evidence.whole(Signal.UPDATE_NORM.value)
    found = []
    for (first, a), (last, b) in evidence.whole(Signal.PARAM_NORM.value).pairs():
        wanted = last < near if calm else last >= near and first <= evidence.onset_step
        if wanted and math.isfinite(a + b):
            explained, exact = _explained(norms, rates, first, last)
            if explained is not None:
                found.append(Move(first, last, a, b - a, explained, exact))
    return found


def calm_values(evidence: Evidence, name: str) -> list[float]:
    """Finite values of a signal from before the onset."""
    return [v for v in evidence.before.get(name, Trace()).values if math.isfinite(v)]


def away(value: float, before: Sequence[float]) -> tuple[float, float]:
    """Median of `before`, and how many robust deviations `value` is from it."""
    middle = median(before)
    spread = NORMAL_MAD * median([abs(other - middle) for other in before])
    return middle, abs(value - middle) / max(spread, LEAST_DEVIATION * abs(middle), 1e-12)


def _explained(norms: Trace, rates: Trace, first: int, last: int) -> tuple[float | None, bool]:
    """Sum of |update| of the steps in (first, last], and whether all were measured.

    `update_norm` is |theta after - theta before| / lr, each group's by its own rate, so the largest
    of the rates bounds the change; a step that has none counts as the largest of those measured
    from `first` on, up to the first after `last`.
    """
    near = [value for step, value in norms.rows() if first <= step <= last]
    near += [value for step, value in norms.rows() if step > last][:1]
    if not near or not rates.steps or not math.isfinite(sum(near) + sum(rates.values)):
        return None, False
    highest, within = max(rates.values), [row for row in norms.rows() if first < row[0] <= last]
    known = [(value, rates.at(step)) for step, value in within]
    missing = last - first - len(known)
    total = sum(value * (highest if rate is None else rate) for value, rate in known)
    exact = not missing and all(rate is not None for _, rate in known)
    return total + missing * max(near) * highest, exact


# Whether the columns mean what is assumed.


def _many(contradicting: int, rows: int) -> bool:
    return contradicting >= CONTRADICTED or 0 < PART * rows <= contradicting


def own_beta2(evidence: Evidence) -> float | None:
    """The smallest that the job told; None where it told none, or what no beta2 can be."""
    told = [value for _, value in evidence.whole(ADAM_BETA2).rows()]
    return min(told) if told and min(told) > 0.0 and max(told) < 1.0 else None


def falls_too_fast(pair: tuple[tuple[int, float], tuple[int, float]], beta2: float | None) -> bool:
    """Whether a second moment fell further than `beta2`, or any in use, lets it."""
    (first, a), (last, b) = pair
    return b < 0.95 * a * (beta2 or LEAST_BETA2) ** (last - first)


def _limit_of(evidence: Evidence, name: str) -> float | None:
    """The limit that a gradient norm does not pass; None where it can be the one before clipping.

    Rows near the onset have to lie on it: how far gradients grew is asked there.
    """
    rows = [row for row in evidence.whole(name).rows() if math.isfinite(row[1]) and row[1] > 0]
    limit = max((value for _, value in rows), default=0.0)
    on = [step for step, value in rows if value >= (1.0 - PINNED) * limit]
    near = [step for step in on if step >= evidence.onset_step - LEAD]
    return limit if len(on) >= PINNED_ROWS and near else None


def is_steady(evidence: Evidence, name: str) -> bool:
    """Whether calm rows hardly ever stand out as a row of bad data has to."""
    values = calm_values(evidence, name)
    strange = sum(away(value, values)[1] >= STRANGE for value in values)
    return strange <= OFTEN * len(values)


def questions_of(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The columns that cannot mean what is assumed, each with what to ask whoever wrote the log;
    none where a limit cut a norm off, of which the growth alone is not known."""
    calm = moves(evidence, calm=True)
    if _many(sum(move.unexplained for move in calm), len(calm)):
        yield (
            Signal.PARAM_NORM.value,
            "the norm of the weights changes by more than the updates explain in calm rows too: is "
            "update_norm the change of the weights divided by the learning rate, and param_norm "
            "the norm of all of them? How far the weights moved is not used here",
        )
    moments, beta2 = evidence.whole(Signal.ADAM_V_NORM.value).pairs(), own_beta2(evidence)
    early = [pair for pair in moments if pair[1][0] < evidence.onset_step - LEAD]
    if _many(sum(falls_too_fast(pair, beta2) for pair in early), len(early)):
        yield (
            Signal.ADAM_V_NORM.value,
            "adam_v_norm falls faster in calm rows than any second moment can: is it something "
            "else? It is not used here",
        )
    if (limit := _limit_of(evidence, Signal.GRAD_NORM.value)) is not None:
        yield (
            "",
            f"grad_norm does not pass {limit:.4g}: is it the norm after clipping? How far the "
            "gradients grew is not known then",
        )
    worst, losses = (calm_values(evidence, name) for name in (WORST_SEQUENCE, Signal.LOSS.value))
    if worst and losses:
        usual_worst, loss = median(worst), median(losses)
        if not LEAST_SHARE * loss <= usual_worst <= max(MOST_NATS, 2.0 * loss):
            yield (
                WORST_SEQUENCE,
                f"loss_sequence_max is {usual_worst:.4g} in calm rows: is it a sum, or not the "
                "largest? It is not used here",
            )
    if not all(0.0 <= value <= 1.0 for value in calm_values(evidence, UNSEEN_TOKENS)):
        yield (
            UNSEEN_TOKENS,
            "unseen_tokens is no share between 0 and 1: is it a count? It is not used here",
        )
