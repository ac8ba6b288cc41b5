"""Which stretches of a run's tree of segments still stand, and which a rollback left behind.

Law: pure. A step number alone names nothing; every answer is per segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from spikeguard_client.shapes import Segment, SegmentSeries

Key = tuple[str, int]  # attempt, number of the segment
Kept = Mapping[Key, float]  # segment -> the last step that still stands; absent = none of it


def kept_steps(segments: Sequence[Segment]) -> Kept:
    """For every segment on the way to a current one, the last step that was not undone."""
    by_key = {(s["attempt"], s["number"]): s for s in segments}
    kept: dict[Key, float] = {}
    for tip in _tips(by_key):
        limit = math.inf
        for key in _way_back(by_key, tip):
            kept[key] = max(kept.get(key, -math.inf), limit)
            parent = by_key[key]["parent"]
            limit = parent["step"] if parent else limit
    return kept


def kept_of(stretches: Sequence[SegmentSeries]) -> Kept:
    """The same from the curves alone, where the tree is not at hand: current ones stand."""
    return {(s["attempt"], s["number"]): math.inf for s in stretches if s["current"]}


def _parent(segment: Segment) -> Key | None:
    parent = segment["parent"]
    return (parent["attempt"], parent["segment"]) if parent else None


def _tips(by_key: Mapping[Key, Segment]) -> list[Key]:
    """The current segments that no other current one continues."""
    current = [key for key, segment in by_key.items() if segment["current"]]
    inner = set[Key]()
    for key in current:
        for step in islice(_way_back(by_key, key), 1, None):
            if step in inner:
                break  # and so are those before it
            inner.add(step)
    return [key for key in current if key not in inner]


def _way_back(by_key: Mapping[Key, Segment], key: Key | None) -> Iterator[Key]:
    """`key` and its ancestors; a parent that is unknown or comes twice ends the way."""
    seen = set[Key]()
    while key in by_key and key not in seen:
        assert key is not None
        seen.add(key)
        yield key
        key = _parent(by_key[key])
