"""Figures that the clues are read from: ratios to what was usual, excess, what updates explain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spikeguard_core.detection.noise import NORMAL_MAD, median
from spikeguard_core.diagnosis.evidence import Evidence, Trace
from spikeguard_protocol import RATES_OF_GROUPS, Signal

LEAD = 3  # steps before the onset that what caused it may have struck
GRAD_NORMS = (Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value)
UPDATE_NORMS = (Signal.UPDATE_NORM.value, Signal.UPDATE_NORM_SAMPLED.value)
NEAR = 3.0  # how far an estimate from neighbouring steps may be off
SURE = 1.02  # the same where every step was measured
LEAST_DEVIATION = 0.01  # of a statistic of the tokens, as a part of it
ROUNDED = 1e-5  # of a norm: what fp32 and the digits kept cannot show


@dataclass(frozen=True, slots=True)
class Move:
    """A change of the norm of the weights between two measurements."""

    first: int  # step of the earlier
    last: int
    before: float
    change: float  # absolute
    explained: float | None  # the most that updates in between can have changed it by
    exact: bool  # every one of them was measured

    @property
    def unexplained(self) -> bool:
        """Whether no updates can have made it: a norm changes by no more than its vector."""
        if self.explained is None or not 0.0 < self.change < math.inf:
            return False
        room = SURE if self.exact else NEAR
        return self.change > room * self.explained + ROUNDED * (self.before + self.change)


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


def excesses(evidence: Evidence) -> list[tuple[int, float]]:
    """(step, loss over its trend in scales) from the onset on; not finite where the loss is not."""
    trend = evidence.trend
    if trend is None:
        return []
    rows = evidence.after.get(Signal.LOSS.value, Trace()).rows()
    return [(step, (value - trend.at(step)) / trend.scale) for step, value in rows]


def moves(evidence: Evidence) -> list[Move]:
    """Changes of param_norm around the onset, both ends finite."""
    near, updates = evidence.onset_step - LEAD, _updates(evidence)
    return [
        _move(updates, a, b)
        for a, b in _weights(evidence)
        if b[0] >= near and a[0] <= evidence.onset_step
    ]


def calm_moves(evidence: Evidence) -> list[Move]:
    """The same well before the onset."""
    near, updates = evidence.onset_step - LEAD, _updates(evidence)
    return [_move(updates, a, b) for a, b in _weights(evidence) if b[0] < near]


def _weights(evidence: Evidence) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
    pairs = evidence.whole(Signal.PARAM_NORM.value).pairs()
    return ((a, b) for a, b in pairs if math.isfinite(a[1] + b[1]))


def calm_values(evidence: Evidence, name: str) -> list[float]:
    """Finite values of a signal from before the onset."""
    return [v for v in evidence.before.get(name, Trace()).values if math.isfinite(v)]


def away(value: float, before: Sequence[float]) -> tuple[float, float]:
    """Median of `before`, and how many robust deviations `value` is from it."""
    middle = median(before)
    spread = NORMAL_MAD * median([abs(other - middle) for other in before])
    return middle, abs(value - middle) / max(spread, LEAST_DEVIATION * abs(middle), 1e-12)


def _updates(evidence: Evidence) -> tuple[Trace, Trace]:
    """The norms of updates, and at each step the largest rate of any group."""
    groups = group_rates(evidence)
    largest = map(max, zip(*(each.values for each in groups.values()), strict=True))
    return evidence.whole(Signal.UPDATE_NORM.value), Trace(groups[0].steps, list(largest))


def _move(updates: tuple[Trace, Trace], a: tuple[int, float], b: tuple[int, float]) -> Move:
    explained, exact = _explained(*updates, a[0], b[0])
    return Move(a[0], b[0], a[1], abs(b[1] - a[1]), explained, exact)


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
