"""Which stretches of a run's tree of segments still stand, and which a rollback left behind.

A step number alone names nothing; every answer is per segment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spikeguard_client.shapes import Segment, SegmentSeries

Key = tuple[str, int]  # attempt, number of the segment
Kept = Mapping[Key, float]  # segment -> the last step that still stands; absent = none of it


def kept_steps(segments: Sequence[Segment]) -> Kept:
    """For every segment of the line that is trained now, the last step that was not undone: where
    the next one of the line went on from."""
    line = [segment for segment in segments if segment["current"]]
    ends: dict[Key, float] = {}
    for parent in (segment["parent"] for segment in line):
        if parent is not None:
            key = (parent["attempt"], parent["segment"])
            ends[key] = max(ends.get(key, -math.inf), parent["step"])
    keys = ((segment["attempt"], segment["number"]) for segment in line)
    return {key: ends.get(key, math.inf) for key in keys}


def kept_of(stretches: Sequence[SegmentSeries]) -> Kept:
    """The same from the curves alone, where the tree is not at hand: current ones stand."""
    return {(s["attempt"], s["number"]): math.inf for s in stretches if s["current"]}
