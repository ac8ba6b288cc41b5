"""Clues in the weights, in the comparison of the ranks' weights, and in Adam's second moment.

Two bounds hold for every step of AdamW: the norm of the weights changes by no more than the norm of
the update, and no element of the second moment falls below beta2 times what it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import takewhile

from spikeguard_core.diagnosis.cause.measured import (
    GRAD_NORMS,
    LEAD,
    LEAST_BETA2,
    UPDATE_NORMS,
    Move,
    clipped_at,
    falls_too_fast,
    first_measured,
    moment_fits,
    moves,
    own_beta2,
    ratios,
    updates_fit,
    usual,
)
from spikeguard_core.diagnosis.evidence import REPLICA_APART, REPLICAS_APART, Evidence
from spikeguard_core.suspicion import Clue, Mark
from spikeguard_protocol import Cause, Signal

FIRST_ROWS = 6  # of a norm, from shortly before the onset on
GREW = 2.0  # an update over its usual norm, against the same of the gradient
LARGE = 3.0
PULLED = 0.5  # of what updates explain, by which the weights shrank: such updates point at 0
LATE = 1.5  # of the gradient's growth over the update's: Adam takes a tenth of a jump at once
MOST_RANKS = 2**31  # a number that is no rank names none


def clues_of_replicas(evidence: Evidence) -> Iterator[Clue]:
    """Whether some ranks no longer held the weights of the others."""
    rows = evidence.whole(REPLICAS_APART).rows()
    if not rows or not rows[-1][1] >= 1.0:
        return
    step, apart = [*takewhile(lambda row: row[1] >= 1.0, reversed(rows))][-1]
    rank = evidence.whole(REPLICA_APART).at(step)
    named = "" if rank is None else f" (rank {rank:.0f}{' first' if apart > 1.0 else ''})"
    ranks = "1 rank" if apart == 1.0 else f"{apart:.0f} ranks"
    reason = (
        f"from the comparison at step {step} on, {ranks}{named} did not hold the weights of the "
        "others"
    )
    mark = Mark(step, rank=int(rank) if rank is not None and 0 <= rank < MOST_RANKS else None)
    yield Clue(Cause.WEIGHT_CORRUPTION, 7.0, reason, mark)


def clues_of_weights(evidence: Evidence) -> Iterator[Clue]:
    """Whether the weights were changed by something else than updates."""
    if not updates_fit(evidence):
        return
    known = moves(evidence)
    strange = [move for move in known if move.unexplained]
    if strange:
        yield _changed(max(strange, key=lambda move: (move.exact, abs(move.change))))
    elif known:
        weight = -2.5 if all(move.exact for move in known) else -1.5
        reason = "the weights moved no further than their updates"
        yield Clue(Cause.WEIGHT_CORRUPTION, weight, reason)


def _norm(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _changed(move: Move) -> Clue:
    explained = f"{'' if move.exact else 'about '}{_norm(move.explained)}"
    reason = (
        f"the norm of the weights changed by {_norm(abs(move.change))} from {_norm(move.before)} "
        f"between steps {move.first} and {move.last}; the updates in between explain at most "
        f"{explained}"
    )
    over = math.log(abs(move.change)) - math.log(max(move.explained, 1e-30))
    weight = 8.0 if move.exact else min(6.0, 2.0 + over)
    return Clue(Cause.WEIGHT_CORRUPTION, weight, reason, Mark(move.first + 1, move.last))


def clues_of_moment(evidence: Evidence) -> Iterator[Clue]:
    """Whether the second moment fell."""
    near = evidence.onset_step
    if not moment_fits(evidence):
        return
    own = own_beta2(evidence)
    beta2 = own or LEAST_BETA2
    for pair in evidence.whole(Signal.ADAM_V_NORM.value).pairs():
        (first, a), (last, b) = pair
        if last >= near - LEAD and first <= near and falls_too_fast(pair, own):
            reason = (
                f"the norm of Adam's second moment fell from {a:.3g} to {b:.3g} between steps "
                f"{first} and {last}; no beta2 of {beta2:g} or more lets it fall below "
                f"{a * beta2 ** (last - first):.3g}"
            )
            yield Clue(Cause.STALE_SECOND_MOMENT, 7.0, reason, Mark(first + 1, last))
            return


def clues_of_updates(evidence: Evidence) -> Iterator[Clue]:
    """Whether updates grew without gradients that ask for it."""
    grad = first_measured(evidence, GRAD_NORMS)
    if grad is None or clipped_at(evidence, grad) is not None:
        return
    gradients = ratios(evidence, grad)
    grown = [(s, grew, _asked_by(gradients, s)) for s, grew in _first_updates(evidence)]
    grown = [row for row in grown if math.isfinite(row[2])]
    if not grown:
        return
    step, grew, asked = max(grown, key=lambda row: row[1] / row[2])
    explained = (move for move in moves(evidence) if not move.unexplained)
    to_zero = next((m for m in explained if -m.change >= PULLED * m.explained), None)
    if grew >= LARGE and to_zero is not None and updates_fit(evidence):
        part = -to_zero.change / to_zero.explained
        reason = (
            f"updates grew {grew:.3g}-fold by step {step} and shrank the weights by {part:.0%} of "
            "their own size: what pulls weights to 0 was raised (weight decay)"
        )
        yield Clue(Cause.UNKNOWN, 3.0, reason)
    elif grew >= LARGE and grew >= GREW * asked:
        reason = (
            f"updates grew {grew:.3g}-fold by step {step} and gradients {asked:.2g}-fold: "
            f"the second moment that divides them was too small{_lag(evidence)}"
        )
        weight = 3.0 + min(2.0, math.log(grew / asked / GREW))
        yield Clue(Cause.STALE_SECOND_MOMENT, weight, reason, _sudden(grown, step))
    elif (late := _late(evidence, gradients)) is not None:
        yield late
    elif grew < GREW:
        yield Clue(
            Cause.STALE_SECOND_MOMENT, -1.5, "the updates did not grow ahead of the gradients"
        )


def _late(evidence: Evidence, gradients: list[tuple[int, float]]) -> Clue | None:
    """A gradient that the second moment had not followed, at a step whose own loss was as ever: its
    batch was none that stood out. Where it follows, Adam divides such a gradient away."""
    asked = dict(gradients)
    for step, grew in _first_updates(evidence):
        jumped = asked.get(step, 0.0)
        jump = max(LARGE, LATE * grew) <= jumped < math.inf
        if step < evidence.onset_step and grew >= LARGE and jump:
            reason = (
                f"at step {step} gradients grew {jumped:.2g}-fold and updates {grew:.3g}-fold, and "
                "the loss rose only after it: the second moment that divides them lags"
                f"{_lag(evidence)}"
            )
            weight = 3.0 + min(1.0, math.log(grew / LARGE))
            return Clue(Cause.STALE_SECOND_MOMENT, weight, reason, Mark(step, step))
    return None


def _lag(evidence: Evidence) -> str:
    """How fast it follows, where the job told its beta2."""
    if (beta2 := own_beta2(evidence)) is None:
        return ""
    steps = round(1.0 / (1.0 - beta2))
    return f" (at the job's beta2 of {beta2:g} it follows within some {steps:,} steps)"


def _first_updates(evidence: Evidence) -> list[tuple[int, float]]:
    """(step, growth of the update) of the first rows of every update norm that is measured: the
    exact one is seldom sent before an onset, the sampled one at every step."""
    named = [name for name in UPDATE_NORMS if usual(evidence, name)]
    rows = [
        [row for row in _at_one_rate(evidence, name) if math.isfinite(row[1])] for name in named
    ]
    return [row for of_one in rows for row in of_one[:FIRST_ROWS]]


def _sudden(grown: list[tuple[int, float, float]], last: int) -> Mark | None:
    """The steps from the first update that outgrew its gradients on; None where none before it is
    known to have been as ever: the state may have been spoilt for long."""
    rows = sorted(row for row in grown if row[0] <= last)
    first = next((step for step, grew, asked in rows if grew >= GREW * asked), last)
    calm = any(step < first and grew < GREW for step, grew, _ in rows)
    return Mark(first, last) if calm else None


def _asked_by(gradients: list[tuple[int, float]], step: int) -> float:
    """How far gradients grew up to `step`: updates may grow with them."""
    grown = [ratio for at, ratio in gradients if at <= step]
    if not all(map(math.isfinite, grown)):
        return math.inf
    return max(1e-6, *grown) if grown else 1.0


def _at_one_rate(evidence: Evidence, name: str) -> list[tuple[int, float]]:
    """(step, growth of the update) that no rise of the learning rate can have made, whether or not
    the log divides updates by it."""
    rates = dict(ratios(evidence, Signal.LR.value))
    return [(step, grew / max(1.0, rates.get(step, 1.0))) for step, grew in ratios(evidence, name)]
