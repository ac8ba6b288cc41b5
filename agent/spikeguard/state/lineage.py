"""Where states stand in the run's history: the one in memory, and those that it can go back to.

Pure. A state came to be by a chain of segments from the run's start. What a rollback abandons is
computed from two chains, never from step numbers alone, since the same step number may stand in
several segments. What is left out of the data stays out, wherever the run goes back to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from spikeguard_protocol import BatchRange, Medium, SegmentId, SegmentPoint, TargetSaved


@dataclass(frozen=True, slots=True)
class Abandonment:
    """The steps of `segment` after `after` are no longer part of the run."""

    segment: SegmentId
    after: int  # -1: all of it

    def covers(self, point: SegmentPoint) -> bool:
        """Whether `point` lies in the abandoned stretch."""
        return point.segment == self.segment and point.step > self.after


# Oldest first. Each point says at which step its segment was left for the next one; the last is
# where the state itself stands.
Lineage = tuple[SegmentPoint, ...]


def abandoned_by_return(current: Lineage, target: Lineage) -> list[Abandonment]:
    """What going back from `current` to the end of `target` leaves behind."""
    kept = {point.segment for point in target}
    later = [point.segment for point in current if point.segment not in kept]
    trained = {point.segment: point.step for point in current}
    cut = [p for p in target[:-1] if trained.get(p.segment, -1) > p.step]
    return [
        *(Abandonment(point.segment, point.step) for point in (*cut, target[-1])),
        *(Abandonment(segment, -1) for segment in later),
    ]


def steps_given_up(current: Lineage, target: Lineage) -> int:
    """How many trained steps the run at the end of `current` loses by going to `target`."""
    trained = {point.segment: point.step for point in current}
    common = (min(p.step, trained[p.segment]) for p in target if p.segment in trained)
    return current[-1].step - max(common, default=0)


def is_abandoned(lineage: Lineage, abandonments: Iterable[Abandonment]) -> bool:
    """Whether the state at the end of `lineage` lies in, or came through, an abandoned stretch."""
    known = list(abandonments)
    return any(a.covers(point) for a in known for point in lineage)


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


class Skips:
    """The positions of the data order that are left out: a union of ranges [first, end)."""

    def __init__(self, ranges: Iterable[BatchRange] = ()) -> None:
        self.ranges: list[BatchRange] = []
        self.commands: dict[BatchRange, str] = {}  # the first that asked for it, where known
        for skip in ranges:
            self.add(skip)

    def add(self, skip: BatchRange, command: str | None = None) -> None:
        """Leave `skip` out from now on."""
        if skip not in self.ranges:
            self.ranges.append(skip)
        if command is not None:
            self.commands.setdefault(skip, command)

    def end_of_skip(self, position: int) -> int:
        """The first position from `position` on that is not left out."""
        while covering := [r.end for r in self.ranges if r.first <= position < r.end]:
            position = max(covering)
        return position

    def leaves_out(self, position: int) -> bool:
        """Whether `position` is left out."""
        return any(position in skip for skip in self.ranges)


Tree = dict[str, Any]  # nested dicts, lists and tuples of host tensors and plain values


@dataclass(frozen=True, slots=True)
class Target:
    """Where a saved state stands in the run's history."""

    name: str
    position: int
    lineage: Lineage  # ends where it was taken
    medium: Medium
    damage: str | None = None  # what its writer found in the tensors; None: nothing, or not looked

    @property
    def segment(self) -> SegmentId:
        return self.lineage[-1].segment

    @property
    def step(self) -> int:
        return self.lineage[-1].step

    def record(self) -> TargetSaved:
        """How the server hears of it."""
        segment = self.segment.number
        return TargetSaved(self.name, segment, self.step, self.position, self.medium, self.damage)


NAME = re.compile(r"checkpoint-[0-9]{8,}-[0-9a-f]{8}\.[0-9]+")  # of a checkpoint, by `target_name`


def target_name(kind: str, step: int, segment: SegmentId) -> str:
    """`checkpoint-00000100-0f3a9c21.0`: step, attempt, segment."""
    return f"{kind}-{step:08d}-{segment.attempt[:8]}.{segment.number}"
