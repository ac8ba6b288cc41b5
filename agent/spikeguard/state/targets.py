"""A place the run can go back to: a checkpoint on disk or a snapshot in host memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spikeguard.state.lineage import Lineage
from spikeguard_protocol import Medium, SegmentId, TargetSaved

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


def shape_mismatch(saved: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """Why `saved` model tensors do not fit `live` ones; None if they do."""
    if saved.keys() != live.keys():
        odd = sorted(saved.keys() ^ live.keys())[0]
        return f"the model has changed: {odd} is not in both"
    for name, tensor in saved.items():
        if getattr(tensor, "shape", None) != getattr(live[name], "shape", None):
            return f"the model has changed: {name} has another shape"
    return None
