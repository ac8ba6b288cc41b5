"""What doing nothing would have cost, told from the branch that was undone.

A rollback leaves behind a stretch of steps that went on with the spike: the one observation there
is of what would have come. Its excess over the extrapolated trend is fitted as forecasts are, a
power of the steps since the onset, from the middle of the stretch to its end. A step counts as lost
until the loss no longer stands out of the trend, as it does in every other figure of cost.

Invariants: pure. An estimate is told with its range, or not at all and why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spikeguard_protocol import Signal
from spikeguard_server.domain.diagnosis.change_effect import NORMAL_95
from spikeguard_server.domain.diagnosis.forecast import BUMP, INERTIA, clipped_mean, doubt_of
from spikeguard_server.domain.events import Trend
from spikeguard_server.domain.lifecycle.command_life import EXECUTED
from spikeguard_server.domain.lifecycle.damage import STANDS_OUT
from spikeguard_server.report.facts import PostMortem, RecordedCurve
from spikeguard_server.report.wording import number, plural

FEWEST_ROWS: Final = 16  # of the undone branch, that a course can be seen in
MOST_STEPS: Final = 1_000_000  # an estimate beyond it says nothing


@dataclass(frozen=True, slots=True)
class Inaction:
    """Steps that would have been lost; None where nothing on record tells."""

    sentence: str  # what is known, and how well; or why it is not
    least: int | None = None  # those that were seen to be lost on the undone branch
    steps: int | None = None  # in all, as estimated; None = no end in sight, or not known
    low: int | None = None  # of the 95 % range
    high: int | None = None  # None with `steps`: the range has no upper end
    same: bool = False  # nothing was done, so it is what the incident did cost


@dataclass(frozen=True, slots=True)
class _Branch:
    """The end of the branch that was undone: excess over the trend, nats, by step."""

    seen: int  # its steps from the onset on
    steps: Sequence[int]
    excess: Sequence[float]


def inaction_of(facts: PostMortem) -> Inaction:
    """What the incident would have cost without any command."""
    trend, acted = facts.incident.trend, [c for c in facts.commands if _acts(c.state, c.action)]
    if not acted:
        return Inaction("Nothing was done about it, so this is what doing nothing cost.", same=True)
    if not facts.rollbacks:
        return Inaction(
            "What doing nothing would have cost is not known: the command changed the run as it "
            "went on, so no branch shows the run without it."
        )
    if trend is None:
        return Inaction(
            "What doing nothing would have cost is not known: the run had no trend yet that the "
            "undone branch could be held against."
        )
    branch = _undone(facts, trend)
    if branch is None or len(branch.steps) < FEWEST_ROWS:
        rows = 0 if branch is None else len(branch.steps)
        return Inaction(
            "What doing nothing would have cost is not known: the branch that was undone has "
            f"{plural(rows, 'step')} with a loss after the onset, too few to see a course in."
        )
    return _estimated(branch, trend, facts.incident.onset_step)


def _acts(state: object, action: object) -> bool:
    return state in EXECUTED and type(action).__name__ not in ("Watch", "CheckpointNow")


def _undone(facts: PostMortem, trend: Trend) -> _Branch | None:
    """The first branch that was left behind, from the onset on."""
    onset = facts.incident.onset_step
    curve = next((c for c in facts.curves if c.kept_to is not None and _past(c, onset)), None)
    if curve is None:
        return None
    pairs = zip(curve.steps, curve.values.get(Signal.LOSS, ()), strict=False)
    rows = [(s, v - trend.at(s)) for s, v in pairs if v is not None and s >= onset]
    return _Branch(
        max(rows)[0] - onset + 1 if rows else 0, [s for s, _ in rows], [e for _, e in rows]
    )


def _past(curve: RecordedCurve, step: int) -> bool:
    return bool(curve.steps) and curve.steps[-1] >= step


def _estimated(branch: _Branch, trend: Trend, onset: int) -> Inaction:
    half = branch.excess[len(branch.excess) // 2 :]
    where = f"steps {branch.steps[-len(half)]:,} to {branch.steps[-1]:,}"
    if not all(math.isfinite(value) for value in half[len(half) // 2 :]):
        return Inaction(
            "Left alone, the run was lost: the loss of the undone branch was not finite at its "
            f"end ({where}). Every further step would have been lost.",
            least=branch.seen,
        )
    early, late = _mean(half[: len(half) // 2], trend), _mean(half[len(half) // 2 :], trend)
    noise = INERTIA * trend.scale / math.sqrt(len(half) / 2)
    limit = STANDS_OUT * trend.band * trend.scale
    sure = NORMAL_95 * math.hypot(noise, doubt_of(trend, branch.steps[-1]))
    level = f"{number(late, 3)} ± {number(sure, 2)} nats above the trend"
    if late <= limit:
        return Inaction(
            f"Left alone, it would have cost about as much: the undone branch was back within the "
            f"band when it was given up ({level}).",
            least=branch.seen, steps=branch.seen, low=branch.seen, high=branch.seen,
        )  # fmt: skip
    fall = math.log(max(early, noise) / late)
    error = NORMAL_95 * math.hypot(noise / max(early, noise), noise / late, BUMP)
    at = [branch.steps[-len(half) + int(len(half) * part)] - onset + 1 for part in (0.25, 0.75)]
    span, far = math.log(at[1] / at[0]), math.log(late / limit)
    ends = [_end((fall + shift) / span, at[1], far) for shift in (error, 0.0, -error)]
    low, middle, high = (None if end is None else max(end, branch.seen) for end in ends)
    if middle is None or low is None:
        return Inaction(
            f"Left alone, no end was in sight: over {where} the undone branch stood {level} and "
            "did not fall. Every further step would have been lost.",
            least=branch.seen, low=low,
        )  # fmt: skip
    ranged = f"at least {low:,}" if high is None else f"{low:,} to {high:,}"
    return Inaction(
        f"Left alone, the loss would have been back in its band after about {middle:,} steps "
        f"({ranged}, 95 %), by how it fell over {where}, where it still stood {level}.",
        least=branch.seen, steps=middle, low=low, high=high,
    )  # fmt: skip


def _mean(values: Sequence[float], trend: Trend) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return clipped_mean(finite, trend.scale) if finite else math.inf


def _end(power: float, rows: float, far: float) -> int | None:
    """Steps after the onset at which the excess reaches the limit; None where it does not."""
    if power <= 0.0 or far / power > 50.0:
        return None
    steps = rows * math.exp(far / power)
    return round(steps) if steps <= MOST_STEPS else None
