"""Clues in the data of the first steps: the shape of the loss, the tokens, and what came again with
which batches.

A batch shows in its own loss; weights show from the next step on. What hangs on batch positions
comes again with them, what hangs on the step at its step; what happened once does not. What came
back at neither says nothing of the first: its own rows tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

from spikeguard_core.detection.noise import median
from spikeguard_core.diagnosis.cause.measured import (
    STRANGE,
    UPDATE_NORMS,
    away,
    calm_values,
    excesses,
    first_measured,
    gradient_growth,
    is_steady,
    moves,
    ratios,
)
from spikeguard_core.diagnosis.evidence import (
    TOKEN_ENTROPY,
    UNSEEN_TOKENS,
    WORST_SEQUENCE,
    Evidence,
    Trace,
)
from spikeguard_core.events import Trend
from spikeguard_core.suspicion import Clue, Mark
from spikeguard_protocol import BatchRange, Cause, Signal
from spikeguard_protocol.phrases import batches_phrase

FIRST_ROWS = 8  # of the loss, in which a sudden rise has its peak
SUDDEN = 6.0  # scales
BACK = 3.0  # scales
PART = 0.1  # of the peak, that counts as back too
DROP = 3.0  # an excess over that of the next row, where bad data ends
CALM_GRADIENT = 2.0  # over the usual norm
AS_EVER = 1.5  # of an update, over the usual one
LARGE = 3.0
LEVEL_ROWS = 8  # whose median is the level of the loss
EVEN, ALIKE = 0.03, 0.2  # parts by which a loss, and a gradient, may be off such a multiple
UNSEEN = 0.01  # share of new tokens that is worth a word
MOSTLY = 0.5  # share of new tokens from which the text is no ordinary one
FEW = 4.0  # times the mean's rise, from which few sequences carry it; other faults reach 2.4

NEAR_STEPS = 2  # of the onset's step: detection may see the same spike so much later
NEAR_BATCHES = 2  # steps' batches behind those left out, or beside those of the onset


def clues_of_loss(evidence: Evidence) -> Iterator[Clue]:
    """Whether the loss jumped within one step, and went with the batches that brought it."""
    rows = [row for row in excesses(evidence) if math.isfinite(row[1])]
    if not rows:
        return
    if evidence.alone:
        stood = f"the loss stood out at step {rows[0][0]} alone"
        reason = f"{stood}, and was back at once {_with(evidence, rows[0][0], rows[-1][0])}"
        yield Clue(Cause.BAD_BATCH, 4.0, reason, Mark(evidence.onset_step, evidence.onset_step))
        return
    peak = max(height for _, height in rows[:FIRST_ROWS])
    if peak < BACK:
        return  # it did not rise
    step, height = rows[0]
    if peak / 2 <= height < SUDDEN:  # too little to tell
        yield from (Clue(Cause.BAD_BATCH, -1.5), Clue(Cause.LR_TOO_HIGH, 0.5))
        return
    if height < peak / 2:
        yield Clue(Cause.BAD_BATCH, -1.5, "the loss rose by degrees, not in one step")
        top = next(step for step, height in rows if height >= peak)
        yield Clue(Cause.LR_TOO_HIGH, 0.5, f"the loss climbed by steps up to step {top}")
        return
    yield Clue(Cause.BAD_BATCH, 1.5, f"the loss rose within one step, step {step}")
    yield from _unmoved(evidence)
    yield from _return(evidence, rows, peak)


def _unmoved(evidence: Evidence) -> Iterator[Clue]:
    """Whether the weights that the onset met had been moved as ever: then it is the batch."""
    last = evidence.onset_step - 1
    known, rates = moves(evidence), dict(ratios(evidence, Signal.LR.value))
    name, gradients = first_measured(evidence, UPDATE_NORMS), gradient_growth(evidence)
    grew = {  # step -> how far its update moved the weights, over the usual; a raised rate counts
        step: size * max(1.0, rates.get(step, 1.0))
        for step, size in (ratios(evidence, name) if name else [])
        if math.isfinite(size)
    }
    if any(move.unexplained for move in known) or not known:
        return
    if last in grew and any(move.exact and move.last == last for move in known):
        if grew[last] < AS_EVER:
            reason = f"the update of step {last} was as usual ({grew[last]:.0%} of its size)"
            yield Clue(Cause.BAD_BATCH, 2.0, reason)
    elif grew and gradients is not None:
        asked = max([1.0, *(ratio for _, ratio in gradients if math.isfinite(ratio))])
        if max(grew.values()) < LARGE * asked:  # updates may grow with them
            yield Clue(Cause.BAD_BATCH, 1.2)


def _return(evidence: Evidence, rows: list[tuple[int, float]], peak: float) -> Iterator[Clue]:
    for (last, before), (step, height) in pairwise(rows):
        if height <= max(BACK, PART * peak):
            if before < max(SUDDEN, DROP * height, peak / 8):
                return  # it came down by degrees
            span = Mark(evidence.onset_step, last)
            reason = f"the loss came down at once {_with(evidence, last, step)}"
            yield Clue(Cause.BAD_BATCH, 2.5, reason, span)
            return
    if len(rows) >= FIRST_ROWS:
        yield Clue(Cause.BAD_BATCH, -1.0, "the loss did not come down once the batch had passed")


def _with(evidence: Evidence, last: int, step: int) -> str:
    reason = f"with step {step}"
    grown = dict(gradient_growth(evidence) or [])
    calm = grown.get(step, math.inf) < CALM_GRADIENT <= grown.get(last, 0.0)
    return f"{reason}, and the gradient norm too" if calm else reason


def trend_before_fall(evidence: Evidence) -> Trend | None:
    """The level before the loss had fallen at once, where its newest rows lie at it again."""
    trend, losses = evidence.trend, evidence.after.get(Signal.LOSS.value, Trace())
    newest = losses.values[-2 * LEVEL_ROWS :]
    if evidence.fell_after is None or trend is None or len(newest) < 2 * LEVEL_ROWS:
        return None
    fall = evidence.level_then - trend.level
    most = BACK / 2 * trend.scale
    least = -max(most, fall / 5)
    off = (
        median(part) - evidence.level_then for part in (newest[:LEVEL_ROWS], newest[LEVEL_ROWS:])
    )
    if not all(least <= height <= most for height in off):
        return None
    return Trend(evidence.fell_after, evidence.level_then, 0.0, trend.scale, trend.band)


def clues_of_level(evidence: Evidence) -> Iterator[Clue]:
    """Whether the loss is where it was before it had fallen: what made it lower has ended."""
    if (trend := trend_before_fall(evidence)) is not None:
        reason = (
            f"the loss is as it was before it fell behind step {trend.step:,}: what had "
            "made it lower may have ended (easier data, a lower rate)"
        )
        yield Clue(Cause.UNKNOWN, 1.0, reason)


def clues_of_units(evidence: Evidence) -> Iterator[Clue]:
    """Whether loss and gradients are evenly so many times what they were, from one step on."""
    growth, trend = gradient_growth(evidence), evidence.trend
    if growth is None or trend is None:
        return
    losses = evidence.after.get(Signal.LOSS.value, Trace()).rows()
    grown = [value / trend.at(step) for step, value in losses if trend.at(step) > 0.0]
    gradients = [ratio for step, ratio in growth if step >= evidence.onset_step]
    if len(grown) < 2 * LEVEL_ROWS or len(gradients) < LEVEL_ROWS:
        return
    times, early = median(grown[-LEVEL_ROWS:]), median(grown[:LEVEL_ROWS])
    if not 1.5 < times < math.inf:
        return
    even = abs(early / times - 1.0) < EVEN > abs(times / round(times) - 1.0)
    if even and abs(median(gradients) / times - 1.0) < ALIKE:
        reason = (
            f"loss and gradients are evenly {times:.2g} times what they were: the loss may be "
            "counted otherwise (a sum in place of a mean, another number of micro-batches)"
        )
        yield Clue(Cause.UNKNOWN, 3.0, reason)


def clues_of_tokens(evidence: Evidence) -> Iterator[Clue]:
    """What the statistics of the onset's tokens say, where they are sent."""
    entropy = _at_onset(evidence, TOKEN_ENTROPY) if is_steady(evidence, TOKEN_ENTROPY) else None
    usual_entropy = False
    new = _at_onset(evidence, UNSEEN_TOKENS)
    if entropy is not None:
        value, (middle, deviations) = entropy[0], away(*entropy)
        usual_entropy = deviations < STRANGE
        if not usual_entropy:
            reason = f"its tokens have an entropy of {value:.3g} nats, and {middle:.3g} before"
            yield Clue(Cause.BAD_BATCH, 4.0, reason, _span(evidence, TOKEN_ENTROPY, _strange))
        else:
            reason = f"its tokens have a usual entropy, {value:.3g} nats"
            yield Clue(Cause.BAD_BATCH, -0.5, reason)
    if new is None:
        return
    value, before = new
    if value < UNSEEN or value < 5.0 * max(before, default=0.0):
        yield Clue(Cause.RARE_TOKENS, -3.0, "its tokens had been seen before")
        return
    reason = f"{value:.1%} of its tokens were never seen before"
    ordinary = usual_entropy and value < MOSTLY
    seen = _span(evidence, UNSEEN_TOKENS, lambda share, _: share >= UNSEEN)
    span = _while_out(evidence, seen)
    yield Clue(Cause.RARE_TOKENS, 6.0 if ordinary else 2.5, reason, span)
    usual = "its tokens are those of ordinary text, though new"
    yield (
        Clue(Cause.BAD_BATCH, -2.0, usual) if ordinary else Clue(Cause.BAD_BATCH, 1.5, reason, span)
    )


def clues_of_sequences(evidence: Evidence) -> Iterator[Clue]:
    """Whether a few sequences of the onset carry what the mean shows: weights harm all alike."""
    found, trend = _at_onset(evidence, WORST_SEQUENCE), evidence.trend
    struck = _struck(evidence)
    mean = evidence.after.get(Signal.LOSS.value, Trace()).at(struck)
    if found is None or trend is None or mean is None or not math.isfinite(mean):
        return
    if not is_steady(evidence, WORST_SEQUENCE):
        return
    value, before = found
    middle, deviations = away(value, before)
    rise, share = value - middle, mean - trend.at(struck)
    if rise <= 0.0 or deviations < STRANGE or rise < FEW * max(share, trend.scale):
        return
    yield Clue(
        Cause.BAD_BATCH,
        3.0,
        f"its worst sequence rose by {rise:.3g} nats to {value:.3g} and the mean by {share:.2g}: "
        "few sequences carry it",
        _while_out(evidence, _span(evidence, WORST_SEQUENCE, _strange)),
    )


def _span(evidence: Evidence, name: str, stands_out: Callable[[float, list[float]], bool]) -> Mark:
    """The steps from the struck one on whose tokens stand out; the last is None while all that are
    known do."""
    before, struck = calm_values(evidence, name), _struck(evidence)
    rows = [row for row in evidence.after.get(name, Trace()).rows() if row[0] >= struck]
    calm = next((row for row, (_, v) in enumerate(rows) if not stands_out(v, before)), None)
    last = rows[calm - 1][0] if calm else None
    return Mark(struck, last)


def _while_out(evidence: Evidence, span: Mark) -> Mark:
    """The span of what stands out, without its end where the loss is still out behind it: what was
    learned or seen stands out no more, and comes on all the same."""
    later = [height for step, height in excesses(evidence) if step > (span.last_step or step)]
    return Mark(span.first_step) if later and later[0] >= SUDDEN else span


def _struck(evidence: Evidence) -> int:
    """The step whose batch is looked at: that behind the onset where the loss stands out only
    there, since noise can place an onset a step early."""
    rows = excesses(evidence)[:2]
    early = len(rows) == 2 and rows[0][1] < SUDDEN <= rows[1][1]
    return rows[1][0] if early else evidence.onset_step


def _strange(value: float, before: list[float]) -> bool:
    return not math.isfinite(value) or away(value, before)[1] >= STRANGE


def _at_onset(evidence: Evidence, name: str) -> tuple[float, list[float]] | None:
    before = calm_values(evidence, name)
    value = evidence.after.get(name, Trace()).at(_struck(evidence))
    if value is None or not math.isfinite(value) or len(before) < 5:
        return None
    return value, before


def clues_of_return(evidence: Evidence) -> Iterator[Clue]:
    """Whether it came back, and whether with the same data."""
    began, then, now = evidence.first_step, evidence.first_batches, evidence.again_batches
    if evidence.again_step is not None:
        if began is not None and then is not None and now is not None:
            yield from _again(evidence, evidence.again_step, began, then, now)
    elif evidence.passed:
        batches = evidence.onset_batches
        were = "was" if batches is not None and len(batches) == 1 else "were"
        those = f"{batches_phrase(batches)} {were}"
        reason = f"after going back {those} trained on again and nothing stood out"
        yield Clue(Cause.BAD_BATCH, -4.0, reason)
        yield Clue(Cause.WEIGHT_CORRUPTION, 1.0, reason)


def same_batches(then: BatchRange, now: BatchRange) -> bool:
    """Whether `now` lies among those of a first rise, as exactly as an onset can be placed: at a
    lowered rate the same batches take longer to show."""
    near = NEAR_BATCHES * len(now)
    return then.first < now.end + near and now.first < then.end + near


def _again(
    evidence: Evidence, step: int, began: int, then: BatchRange, now: BatchRange
) -> Iterator[Clue]:
    """At its own step it may hang on the step (a schedule, a node) as well as on the batches."""
    behind, at_its_step = evidence.again_behind, abs(step - began) <= NEAR_STEPS
    came, batches = f"after going back it came again at step {step} with", batches_phrase(now)
    too = ", at the same step" if at_its_step else ""
    longest = max(0 if behind is None else len(behind), NEAR_BATCHES * len(now))
    if behind is not None and 0 <= now.first - behind.end <= longest:
        # A longer stretch of bad data would have come back there.
        yield Clue(Cause.BAD_BATCH, 3.0, f"{came} {batches}, right behind those left out{too}")
    elif behind is None and same_batches(then, now):
        data = f"{batches}, where it had risen over {batches_phrase(then)}"
        if now.first == then.first:
            data = f"the same data, {batches}"
        yield Clue(Cause.BAD_BATCH, 2.0 if at_its_step else 5.0, f"{came} {data}{too}")
    elif at_its_step:
        reason = f"{came} other data, {batches}"
        yield Clue(Cause.BAD_BATCH, -3.0, reason)
        yield Clue(Cause.LR_TOO_HIGH, 2.5, reason)
