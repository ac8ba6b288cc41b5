"""How the state in memory came to be: the chain of segments from the run's start to here.

Law: pure. What a rollback abandons is computed from two chains, never from step numbers alone,
since the same step number may stand in several segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spikeguard_protocol import SegmentId, SegmentPoint


@dataclass(frozen=True, slots=True)
class Abandonment:
    """The steps of `segment` after `after` are no longer part of the run."""

    segment: SegmentId
    after: int  # -1: all of it

    def covers(self, point: SegmentPoint) -> bool:
        """Whether `point` lies in the abandoned stretch."""
        return point.segment == self.segment and point.step > self.after


Lineage = tuple[SegmentId, ...]  # oldest first; the last is the one being trained


def abandoned_by_return(current: Lineage, target: Lineage, step: int) -> list[Abandonment]:
    """What going back from `current` to `step` of `target`'s last segment leaves behind."""
    later = [segment for segment in current if segment not in target]
    return [Abandonment(target[-1], step), *(Abandonment(segment, -1) for segment in later)]


def is_abandoned(
    lineage: Lineage, point: SegmentPoint, abandonments: Iterable[Abandonment]
) -> bool:
    """Whether the state at `point` descends from, or lies in, an abandoned stretch."""
    known = list(abandonments)
    if any(a.covers(point) for a in known):
        return True
    return any(a.after < 0 and a.segment in lineage for a in known)


def plain_lineage(lineage: Lineage) -> list[list[Any]]:
    """For files."""
    return [[segment.attempt, segment.number] for segment in lineage]


def read_lineage(plain: Sequence[Sequence[Any]]) -> Lineage:
    """Back from a file; raise `ProtocolError` for ids that are none."""
    return tuple(SegmentId(str(attempt), int(number)) for attempt, number in plain)
