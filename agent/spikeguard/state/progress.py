"""The loop's own counters: how many steps, in which segment, and how it came there."""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard.state.lineage import Lineage
from spikeguard_protocol import SegmentId, SegmentPoint


@dataclass(slots=True)
class Progress:
    """Moves with the loop and back with a rollback."""

    attempt: str
    steps: int = 0  # optimizer steps completed
    segment: int = 0  # of this attempt
    ancestors: Lineage = ()  # segments before the current one, and where each was left
    parent: SegmentPoint | None = None  # where the current segment began

    @property
    def lineage(self) -> Lineage:
        return (*self.ancestors, SegmentPoint(SegmentId(self.attempt, self.segment), self.steps))

    def continue_from(self, lineage: Lineage, segment: int) -> None:
        """Stand at the end of `lineage`, about to train `segment`."""
        self.parent = lineage[-1]
        self.ancestors, self.steps, self.segment = lineage, self.parent.step, segment
