"""A possible cause of an incident, how likely it is, and what speaks for and against it. A
ranking holds every cause once, the likeliest first, and adds up to 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spikeguard_protocol import Cause

SHOWN = 0.05  # confidence from which a cause is worth showing
NOTHING = "nothing that was measured tells the causes apart"
QUESTION = "the log's columns are in doubt: "  # before what calm rows contradict


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a cause shows in what was measured, as far as that tells."""

    first_step: int
    last_step: int | None = None  # None: not known, or it still lasts
    ratio: float | None = None  # of the highest learning rate to the lowest
    rank: int | None = None  # that is named
    usual: float | None = None  # learning rate before it was raised
    back: bool = False  # to a learning rate that the run had trained at before, as a schedule's is


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One cause as the evidence has it."""

    cause: Cause
    confidence: float  # probability that it is this one and no other, in [0, 1]
    reasons: tuple[str, ...] = ()  # sentences with numbers and steps, the weightiest first
    mark: Mark | None = None  # of the weightiest clue that has one
    against: tuple[str, ...] = ()  # sentences like `reasons`, of what speaks against it


@dataclass(frozen=True, slots=True)
class Clue:
    """One observation, and how it shifts the odds of one cause against all others."""

    cause: Cause
    weight: float  # logarithm of the likelihood ratio
    reason: str = ""  # of a negative weight, what speaks against
    mark: Mark | None = None


Ranking = tuple[Suspicion, ...]


def ranked(prior: Iterable[tuple[Cause, float]], clues: Sequence[Clue]) -> Ranking:
    """The causes once `clues` are counted; `prior` holds each with its logarithmic weight."""
    start = dict(prior)
    scores = {c: start[c] + sum(clue.weight for clue in clues if clue.cause is c) for c in start}
    most = max(scores.values())
    parts = {cause: math.exp(score - most) for cause, score in scores.items()}
    whole = sum(parts.values())
    found = list[Suspicion]()
    for cause, part in sorted(parts.items(), key=lambda item: -item[1]):
        mine = sorted((c for c in clues if c.cause is cause), key=lambda clue: -abs(clue.weight))
        speaks = tuple(clue.reason for clue in mine if clue.reason and clue.weight >= 0.0)
        against = tuple(clue.reason for clue in mine if clue.reason and clue.weight < 0.0)
        marked = [clue for clue in mine if clue.mark is not None]
        mark = max(marked, key=lambda clue: clue.weight).mark if marked else None
        found.append(Suspicion(cause, part / whole, speaks, mark, against))
    return tuple(found)


def again(ranking: Ranking, clues: Iterable[Clue]) -> Ranking:
    """`ranking` once more `clues` are counted, which say something of their own."""
    prior = [(one.cause, math.log(max(one.confidence, 1e-12))) for one in ranking]
    before = {one.cause: one for one in ranking}
    return tuple(
        replace(
            one,
            reasons=(*one.reasons, *before[one.cause].reasons),
            mark=before[one.cause].mark or one.mark,
            against=(*one.against, *before[one.cause].against),
        )
        for one in ranked(prior, [*clues])
    )


def worth_showing(ranking: Ranking) -> Ranking:
    """The likely ones, always the likeliest, and whatever asks about the log."""
    return tuple(
        one
        for place, one in enumerate(ranking)
        if not place or one.confidence >= SHOWN or questions_in((one,))
    )


def known_in(ranking: Ranking) -> str:
    """What is known where the cause is not; empty: nothing."""
    mine = (one for one in ranking if one.cause is Cause.UNKNOWN)
    said = next((reason for one in mine for reason in one.reasons[:1]), NOTHING)
    return "" if said == NOTHING or said.startswith(QUESTION) else said


def questions_in(ranking: Ranking) -> tuple[str, ...]:
    """What the calm rows made doubtful about the log's columns."""
    reasons = [reason for one in ranking for reason in one.reasons]
    return tuple(reason for reason in reasons if reason.startswith(QUESTION))
