"""The loop's own counters: how many steps, in which segment, and how it came there."""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard.lineage import Lineage
from spikeguard_protocol import SegmentId, SegmentPoint


@dataclass(slots=True)
class Progress:
    """Moves with the loop and back with a rollback."""

    attempt: str
    steps: int = 0  # optimizer steps completed
    segment: int = 0  # of this attempt
    ancestors: Lineage = ()  # segments before the current one
    parent: SegmentPoint | None = None  # where the current segment began

    @property
    def lineage(self) -> Lineage:
        return (*self.ancestors, SegmentId(self.attempt, self.segment))

    def continue_from(self, lineage: Lineage, step: int, segment: int) -> None:
        """Stand at `step` of `lineage`, about to train `segment`."""
        self.ancestors, self.steps, self.segment = lineage, step, segment
        self.parent = SegmentPoint(lineage[-1], step)
