"""Checks that a log's columns mean what the clues assume, over the calm rows before the onset.

Logs define their columns differently. Where calm rows contradict an assumption, the clues that rest
on it count for nothing, and the question is said aloud.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from spikeguard_core.detection.noise import median
from spikeguard_core.diagnosis.cause.measured import (
    LEAD,
    Move,
    away,
    calm_moves,
    calm_values,
)
from spikeguard_core.diagnosis.evidence import (
    ADAM_BETA2,
    UNSEEN_TOKENS,
    WORST_SEQUENCE,
    Evidence,
)
from spikeguard_protocol import Signal

CONTRADICTED = 2  # calm rows that no log of the assumed kind can hold
PART = 0.25  # of the calm rows: one alone is enough where they are few
LEAST_BETA2 = 0.9  # smaller ones are hardly in use; of a job that does not tell its own
PINNED = 1e-4  # as a part of it: how near values lie that one limit cut off
PINNED_ROWS = 3
STRANGE = 6.0  # robust deviations of a statistic of the tokens
OFTEN = 0.125  # share of calm rows as strange, from which it says nothing
MOST_NATS = 25.0  # a token: no mean of a sequence in a run that learns anything is larger
LEAST_SHARE = 0.98  # of the mean: a largest value does not lie below it


def updates_fit(evidence: Evidence) -> bool:
    """Whether `update_norm` can be |theta after - theta before| / lr, and `param_norm` |theta|."""
    return not _many(_unexplained(evidence), len(_known(evidence)))


def _known(evidence: Evidence) -> list[Move]:
    return [move for move in calm_moves(evidence) if move.explained is not None]


def _unexplained(evidence: Evidence) -> int:
    return sum(move.unexplained for move in _known(evidence))


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


def moment_fits(evidence: Evidence) -> bool:
    """Whether `adam_v_norm` can be the norm of a second moment."""
    calm = [pair for pair in _pairs_of_moment(evidence) if pair[1][0] < evidence.onset_step - LEAD]
    beta2 = own_beta2(evidence)
    return not _many(sum(falls_too_fast(pair, beta2) for pair in calm), len(calm))


def _pairs_of_moment(
    evidence: Evidence,
) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
    return evidence.whole(Signal.ADAM_V_NORM.value).pairs()


def clipped_at(evidence: Evidence, name: str) -> float | None:
    """The limit that a gradient norm does not pass; None where it can be the one before clipping.

    Rows near the onset have to lie on it: how far gradients grew is asked there.
    """
    rows = [row for row in evidence.whole(name).rows() if math.isfinite(row[1]) and row[1] > 0]
    if not rows:
        return None
    limit = max(value for _, value in rows)
    on = [step for step, value in rows if value >= (1.0 - PINNED) * limit]
    near = [step for step in on if step >= evidence.onset_step - LEAD]
    return limit if len(on) >= PINNED_ROWS and near else None


def sequences_fit(evidence: Evidence) -> bool:
    """Whether `loss_sequence_max` can be the largest mean over one sequence, in nats a token."""
    worst = calm_values(evidence, WORST_SEQUENCE)
    losses = calm_values(evidence, Signal.LOSS.value)
    if not worst or not losses:
        return True
    return LEAST_SHARE * median(losses) <= median(worst) <= max(MOST_NATS, 2.0 * median(losses))


def is_share(evidence: Evidence, name: str) -> bool:
    """Whether a column can be a share of the tokens."""
    return all(0.0 <= value <= 1.0 for value in calm_values(evidence, name))


def is_steady(evidence: Evidence, name: str) -> bool:
    """Whether calm rows hardly ever stand out as a row of bad data has to."""
    values = calm_values(evidence, name)
    strange = sum(away(value, values)[1] >= STRANGE for value in values)
    return strange <= OFTEN * len(values)


def questions_of(evidence: Evidence) -> Iterator[str]:
    """What to ask whoever wrote the log, one sentence a contradiction."""
    known = len(_known(evidence))
    if not updates_fit(evidence):
        yield (
            f"in {_unexplained(evidence)} of {known} calm stretches before the onset the norm of "
            "the weights changed by more than the updates explain: is update_norm the change of "
            "the weights divided by the learning rate, and param_norm the norm of all of them? "
            "Neither is used here"
        )
    if not moment_fits(evidence):
        yield (
            "adam_v_norm falls faster in calm rows than any second moment can: is it something "
            "else? It is not used here"
        )
    yield from _questions_of_gradients(evidence)
    yield from _questions_of_tokens(evidence)


def _questions_of_gradients(evidence: Evidence) -> Iterator[str]:
    limit = clipped_at(evidence, Signal.GRAD_NORM.value)
    if limit is not None:
        yield (
            f"grad_norm does not pass {limit:.4g}: is it the norm after clipping? How far the "
            "gradients grew is not known then"
        )


def _questions_of_tokens(evidence: Evidence) -> Iterator[str]:
    if not sequences_fit(evidence):
        worst = median(calm_values(evidence, WORST_SEQUENCE))
        yield (
            f"loss_sequence_max is {worst:.4g} in calm rows: is it a sum, or not the largest? It "
            "is not used here"
        )
    if not is_share(evidence, UNSEEN_TOKENS):
        yield "unseen_tokens is no share between 0 and 1: is it a count? It is not used here"
