"""Clues in the comparison of the ranks' weights, which data-parallel training keeps equal.

Only the newest comparison counts: a rollback makes the ranks equal again.
"""

from __future__ import annotations

from collections.abc import Iterator

from spikeguard_core.diagnosis.evidence import REPLICA_APART, REPLICAS_APART, Evidence
from spikeguard_core.suspicion import Clue, Mark
from spikeguard_protocol import Cause

MOST_RANKS = 2**31  # a number that is no rank names none


def clues_of_replicas(evidence: Evidence) -> Iterator[Clue]:
    """Whether some ranks no longer held the weights of the others."""
    rows = evidence.whole(REPLICAS_APART).rows()
    if not rows or not rows[-1][1] >= 1.0:
        return
    step, apart = _apart_since(rows)[0]
    rank = evidence.whole(REPLICA_APART).at(step)
    named = "" if rank is None else f" (rank {rank:.0f}{' first' if apart > 1.0 else ''})"
    ranks = "1 rank" if apart == 1.0 else f"{apart:.0f} ranks"
    reason = (
        f"from the comparison at step {step} on, {ranks}{named} did not hold the weights of the "
        "others"
    )
    mark = Mark(step, rank=int(rank) if rank is not None and 0 <= rank < MOST_RANKS else None)
    yield Clue(Cause.WEIGHT_CORRUPTION, 7.0, reason, mark)


def _apart_since(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The newest comparisons, as far back as ranks were apart in all of them."""
    since = len(rows)
    while since and rows[since - 1][1] >= 1.0:
        since -= 1
    return rows[since:]
