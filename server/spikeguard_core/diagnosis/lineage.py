"""Which steps of a run's history the present weights were trained on.

History is a tree of segments; a step is only ever asked for together with its segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spikeguard_protocol import SegmentId, SegmentPoint


@dataclass(frozen=True, slots=True)
class Lineage:
    """The path from the run's root to its current segment."""

    last_steps: Mapping[SegmentId, int | None]  # its last step on the path; None = the current one

    def holds(self, point: SegmentPoint) -> bool:
        """Whether the present weights descend from the state at `point`."""
        if point.segment not in self.last_steps:
            return False
        last = self.last_steps[point.segment]
        return last is None or point.step <= last


def lineage_of(parents: Mapping[SegmentId, SegmentPoint | None], current: SegmentId) -> Lineage:
    """The lineage of `current`, given each segment's parent (None = a fresh start).

    A parent that is not in `parents` ends the path: what is unknown is not on it.
    """
    last_steps: dict[SegmentId, int | None] = {current: None}
    parent = parents.get(current)
    while parent is not None and parent.segment not in last_steps:
        last_steps[parent.segment] = parent.step
        parent = parents.get(parent.segment)
    return Lineage(last_steps)
