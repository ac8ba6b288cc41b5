"""The causes of one incident, ranked by everything that was measured.

Clues count as independent, their weights stand beside what they are read from, and the prior says
that without any the cause is not known. Of a column that calm rows contradict only what is not
finite counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from spikeguard_core.diagnosis.cause import of_data, of_training
from spikeguard_core.diagnosis.cause.measured import questions_of
from spikeguard_core.diagnosis.evidence import Evidence, Trace
from spikeguard_core.suspicion import NOTHING, QUESTION, Clue, Ranking, ranked
from spikeguard_protocol import Cause

PRIOR: dict[Cause, float] = {  # logarithms of odds against `unknown`
    Cause.UNKNOWN: 0.0,
    Cause.BAD_BATCH: -1.5,
    Cause.RARE_TOKENS: -3.0,
    Cause.STALE_SECOND_MOMENT: -2.0,
    Cause.LR_TOO_HIGH: -1.5,
    Cause.LAYER_FAULT: -3.0,
    Cause.NON_FINITE_SOURCE: -1.5,
    Cause.WEIGHT_CORRUPTION: -2.5,
    Cause.LOSS_SCALE_OVERFLOW: -6.0,  # nothing but their own clue speaks for these two
    Cause.STALLED_WEIGHTS: -6.0,
}
READERS: tuple[Callable[[Evidence], Iterator[Clue]], ...] = (
    *(of_data.clues_of_loss, of_data.clues_of_level, of_data.clues_of_units),
    *(of_data.clues_of_tokens, of_data.clues_of_sequences),
    *(of_training.clues_of_weights, of_training.clues_of_replicas, of_training.clues_of_moment),
    *(of_training.clues_of_updates, of_training.clues_of_rate, of_training.clues_of_overflow),
    *(of_training.clues_of_rounding, of_training.clues_of_non_finite),
    of_data.clues_of_return,
)


def rank(evidence: Evidence) -> Ranking:
    """Every cause with its confidence, the likeliest first."""
    doubted = dict(questions_of(evidence))
    before, after = (
        {name: _not_finite(trace) if name in doubted else trace for name, trace in part.items()}
        for part in (evidence.before, evidence.after)
    )
    sound = replace(evidence, before=before, after=after)
    clues = [clue for read in READERS for clue in read(sound)]
    asked = [Clue(Cause.UNKNOWN, 0.0, f"{QUESTION}{one}") for one in doubted.values()]
    told = any(clue.cause is Cause.UNKNOWN and clue.reason for clue in clues)
    nothing = [] if told else [Clue(Cause.UNKNOWN, 0.0, NOTHING)]
    return ranked(PRIOR.items(), [*clues, *asked, *nothing])


def _not_finite(trace: Trace) -> Trace:
    rows = [row for row in trace.rows() if not math.isfinite(row[1])]
    return Trace([step for step, _ in rows], [value for _, value in rows])
