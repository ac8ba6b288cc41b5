"""Clues in the learning rate, in the weights, their comparison between ranks, Adam's second moment,
and in the numerics: what is not finite, an fp16 loss scale that overflows, bf16 weights that stand
still.

Within a step the loss comes first, then its gradients, then the weights: a learning rate shows in
the next step's loss at the earliest. A rate that a command had lowered and that climbs back to what
it was before the incident has not risen. Two bounds hold for every step of AdamW: the norm of the
weights changes by no more than the norm of the update, and no element of the second moment falls
below beta2 times what it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

from spikeguard_core.detection.noise import median
from spikeguard_core.detection.own_signals import MOST_UNCHANGED
from spikeguard_core.diagnosis.cause.measured import (
    GRAD_NORMS,
    LEAD,
    LEAST_BETA2,
    UPDATE_NORMS,
    Move,
    calm_values,
    excesses,
    falls_too_fast,
    gradient_growth,
    group_rates,
    moves,
    own_beta2,
    ratios,
)
from spikeguard_core.diagnosis.evidence import (
    REPLICA_APART,
    REPLICAS_APART,
    RISE,
    STEP_SKIPPED,
    UNCHANGED_PARAMETERS,
    Evidence,
    Trace,
)
from spikeguard_core.suspicion import Clue, Mark
from spikeguard_protocol import Cause, Signal

SOON = 4.0  # rows: the longer the loss stays calm at a raised rate, the less the rate explains
RESTARTED, PART = 2.0, 0.8  # weight of a rate that is back at so much of the run's highest
FURTHER = 6.0  # scales by which the loss rises further behind a rate that was raised meanwhile
FIRST_ROWS = 6  # of a norm, from shortly before the onset on
GREW = 2.0  # an update over its usual norm, against the same of the gradient
LARGE = 3.0
PULLED = 0.5  # of what updates explain, by which the weights shrank: such updates point at 0
LATE = 1.5  # of the gradient's growth over the update's: Adam takes a tenth of a jump at once
MOST_RANKS = 2**31  # a number that is no rank names none
LOSS, WEIGHTS = Signal.LOSS.value, Signal.PARAM_NORM.value
ORDER = (LOSS, *GRAD_NORMS, Signal.ADAM_V_NORM.value, WEIGHTS)  # in which a step computes them
OFF = 6.0  # scales of the loss from which what is not finite is a consequence
FEWEST = 3  # steps skipped in a row that are no search for a scale any more


def clues_of_rate(evidence: Evidence) -> Iterator[Clue]:
    """Whether the learning rate rose shortly before the onset: the first parameter group's, unless
    that of another group rose more."""
    rates = group_rates(evidence)
    first, *others = (_clue_of(evidence, rates[0], trace, n) for n, trace in rates.items())
    if first is not None:
        known = [first, *(clue for clue in others if clue is not None)]
        yield max(known, key=lambda clue: round(clue.weight, 1))
    yield from _meanwhile(evidence, rates[0].rows())


def _meanwhile(evidence: Evidence, rates: list[tuple[int, float]]) -> Iterator[Clue]:
    """Whether the learning rate rose while the loss was up, and the loss rose further behind it."""
    began = evidence.raised_step
    before = [rate for step, rate in rates if began is not None and step < began]
    if began is None or not before or began <= evidence.onset_step:
        return
    mark = _raised(rates, began, before[-1], before[-1])
    assert mark.ratio is not None
    reason = (
        f"the learning rate rose {mark.ratio:.3g}-fold at step {began}, "
        f"{_steps(began - evidence.onset_step)} after the onset"
    )
    up = [row for row in excesses(evidence) if math.isfinite(row[1])]
    most, further = (
        max((height for step, height in up if (step > began) is behind), default=0.0)
        for behind in (False, True)
    )
    if further < most + FURTHER:
        yield Clue(Cause.UNKNOWN, 0.0, reason)
        return
    weight = min(4.0, 1.0 + 2.0 * math.log(mark.ratio))  # of the onset it says nothing
    yield Clue(Cause.LR_TOO_HIGH, weight, f"{reason}, and the loss rose further", mark)


def _clue_of(evidence: Evidence, first: Trace, trace: Trace, group: int) -> Clue | None:
    """`first`: the rate of the first group; `trace`: that of the group of this number."""
    known = [r for r in trace.rows() if math.isfinite(r[1])]
    rows = [row for row in known if row[0] <= evidence.onset_step]
    if len(rows) < 2:
        return None
    began_low, lowest = min(rows, key=lambda row: row[1])
    later = [row for row in rows if row[0] > began_low]
    usual = max(lowest, (evidence.first_rate or 0.0) * _share(first, trace))
    highest = max((rate for _, rate in later), default=lowest)
    if not later or lowest <= 0.0 or highest < RISE * usual:
        return Clue(Cause.LR_TOO_HIGH, -1.0, "the learning rate had not risen before the onset")
    rise = highest / usual
    began = next(s for s, value in later if value >= RISE * usual)
    learning_rate = f"learning rate of group {group}" if group else "learning rate"
    ahead = evidence.onset_step - began
    reason = (
        f"the {learning_rate} rose {rise:.3g}-fold, from {usual:.3g} to {highest:.3g}, at step "
        f"{began}, {f'{_steps(ahead)} before' if ahead else 'where'} the loss left its trend"
    )
    calm = sum(1 for step, _ in later if began <= step < evidence.onset_step)
    most = 1.0 + 2.0 * math.log(rise)
    known_part = highest / evidence.highest_rate if evidence.highest_rate else 0.0
    back = evidence.highest_rate_step < rows[0][0] and PART <= known_part <= 1.0 and not group
    if back:
        most = min(most, RESTARTED)
        reason += (
            f", back where it was at step {evidence.highest_rate_step}: a warm restart, or a "
            "schedule that began anew"
        )
    weight = min(6.0, most) * min(1.0, SOON / max(calm, 1))
    mark = replace(_raised(known, began, lowest, usual), back=back)
    if group:  # a cap is one on the first group's rate, which may not have moved
        mark = replace(mark, usual=None)
    return Clue(Cause.LR_TOO_HIGH, weight, reason, mark)


def _share(first: Trace, trace: Trace) -> float:
    """How many times the first group's rate a group has as a rule."""
    pairs = zip(first.values, trace.values, strict=True)
    shares = [own / rate for rate, own in pairs if rate > 0.0 and math.isfinite(own / rate)]
    return median(shares) if shares else 1.0


def _raised(rows: list[tuple[int, float]], began: int, lowest: float, usual: float) -> Mark:
    """The steps whose rate was raised over the `usual` one from step `began` on; the last is None
    while it lasts. The ratio is to the `lowest`, which a command may have lowered: so much the
    schedule raises it whatever the command."""
    later = [row for row in rows if row[0] >= began]
    back = next((step for step, rate in later if rate < RISE * usual), None)
    raised = [row for row in later if back is None or row[0] < back]
    ratio = max(rate for _, rate in raised) / lowest
    return Mark(began, None if back is None else raised[-1][0], ratio, usual=usual)


def _steps(steps: int) -> str:
    return f"{steps} step{'s' * (steps != 1)}"


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
    beta2 = own_beta2(evidence) or LEAST_BETA2
    for pair in evidence.whole(Signal.ADAM_V_NORM.value).pairs():
        (first, a), (last, b) = pair
        if last >= near - LEAD and first <= near and falls_too_fast(pair, beta2):
            reason = (
                f"the norm of Adam's second moment fell from {a:.3g} to {b:.3g} between steps "
                f"{first} and {last}; no beta2 of {beta2:g} or more lets it fall below "
                f"{a * beta2 ** (last - first):.3g}"
            )
            yield Clue(Cause.STALE_SECOND_MOMENT, 7.0, reason, Mark(first + 1, last))
            return


def clues_of_updates(evidence: Evidence) -> Iterator[Clue]:
    """Whether updates grew without gradients that ask for it."""
    gradients = gradient_growth(evidence)
    if gradients is None:
        return
    grown = [(s, grew, _asked_by(gradients, s)) for s, grew in _first_updates(evidence)]
    grown = [row for row in grown if math.isfinite(row[2])]
    if not grown:
        return
    step, grew, asked = max(grown, key=lambda row: row[1] / row[2])
    explained = (move for move in moves(evidence) if not move.unexplained)
    to_zero = next((m for m in explained if -m.change >= PULLED * m.explained), None)
    if grew >= LARGE and to_zero is not None:
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
    exact one is seldom sent before an onset, the sampled one at every step. That no rise of the
    learning rate can have made, whether or not the log divides updates by it."""
    rates = dict(ratios(evidence, Signal.LR.value))
    found = []
    for name in UPDATE_NORMS:
        rows = [row for row in ratios(evidence, name) if math.isfinite(row[1])][:FIRST_ROWS]
        found += [(step, grew / max(1.0, rates.get(step, 1.0))) for step, grew in rows]
    return found


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


def clues_of_non_finite(evidence: Evidence) -> Iterator[Clue]:
    """Which signal was the first that was not finite, and whether the loss was off before."""
    near = evidence.onset_step - LEAD
    firsts = {
        name: step
        for name in ORDER
        for step, value in reversed(evidence.whole(name).rows())  # so that the first is kept
        if step >= near and not math.isfinite(value)
    }
    if not firsts:
        yield Clue(Cause.NON_FINITE_SOURCE, -4.0, "every value was finite")
        return
    step = min(firsts.values())
    name = next(name for name in ORDER if firsts.get(name) == step)
    word = name.replace("_", " ")
    weights = firsts.get(WEIGHTS)
    if weights is not None and _finite_gradients(evidence, weights):
        reason = (
            f"the norm of the weights was not finite at step {weights}, while every gradient "
            "up to it was finite"
        )
        yield Clue(Cause.WEIGHT_CORRUPTION, 8.0, reason)
    elif any(height >= OFF and at < step for at, height in excesses(evidence)):
        reason = f"{word} was not finite from step {step} on, after the loss had left its trend"
        yield Clue(Cause.NON_FINITE_SOURCE, -2.0, reason)
    else:
        reason = f"{word} was the first that was not finite, at step {step}"
        loss = evidence.whole(LOSS).at(step)
        if name in GRAD_NORMS and loss:  # exactly 0 is how some tools log one that is not finite
            reason += f", where the loss was still {loss:.4g}: it came from the backward pass"
        yield Clue(Cause.NON_FINITE_SOURCE, 6.0, reason)


def _finite_gradients(evidence: Evidence, last: int) -> bool:
    """Whether every gradient up to step `last` was, and that step's was measured."""
    rows = [row for name in GRAD_NORMS for row in evidence.whole(name).rows() if row[0] <= last]
    return any(step == last for step, _ in rows) and all(math.isfinite(v) for _, v in rows)


def clues_of_overflow(evidence: Evidence) -> Iterator[Clue]:
    """Whether a scaler found no scale."""
    rows = [r for r in evidence.whole(STEP_SKIPPED).rows() if r[0] >= evidence.onset_step]
    skipped = [step for step, value in rows if value >= 1.0]
    if len(skipped) < FEWEST or len(skipped) < len(rows):
        return
    # Where a step that was made reports nothing of this signal, its loss tells that it was made.
    losses = [row for row in evidence.whole(LOSS).rows() if row[0] >= evidence.onset_step]
    known = [row for row in losses if row[0] >= skipped[0]]
    if any(step not in skipped or not math.isfinite(loss) for step, loss in known):
        return
    if losses and not known:  # it is sent, and was not from the first skipped step on
        return
    reason = (
        f"the gradient scaler skipped each of the {len(skipped)} steps known from step "
        f"{skipped[0]} on, while the loss was finite: no loss scale fits"
    )
    yield Clue(Cause.LOSS_SCALE_OVERFLOW, 11.0, reason, Mark(skipped[0]))


def clues_of_rounding(evidence: Evidence) -> Iterator[Clue]:
    """Whether updates rounded to nothing."""
    shares = calm_values(evidence, UNCHANGED_PARAMETERS)
    if not shares or not MOST_UNCHANGED <= median(shares) <= 1.0:
        return
    reason = (
        f"steps before the onset left {median(shares):.1%} of the parameters as they were: "
        "updates round to nothing in this number format"
    )
    yield Clue(Cause.STALLED_WEIGHTS, 9.0, reason)
