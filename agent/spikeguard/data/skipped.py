"""What one rank left out, and its line in this rank's file, `DIRECTORY/left_out/rank-00000.jsonl`.

Law: one entry for a position and a rank: the first stands, unless a later one has the names that
it lacks. Only a time of this host's clock is added to what travels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikeguard_protocol import BatchesSkipped, BatchRange, from_json, to_json

FOLDER = "left_out"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One entry."""

    record: BatchesSkipped
    at: float  # seconds since the epoch

    def plain(self) -> dict[str, Any]:
        """For a file."""
        return {"at": self.at, "left_out": to_json(self.record)}

    @classmethod
    def read(cls, plain: Any) -> LeftOut:
        """Back from a file; raise ValueError, KeyError or TypeError for what is none."""
        return cls(from_json(BatchesSkipped, plain["left_out"]), float(plain["at"]))


def file_of(folder: Path, rank: int) -> Path:
    """Where `rank` writes."""
    return folder / f"rank-{rank:05d}.jsonl"


def files_in(folder: Path) -> list[Path]:
    """Those of every rank."""
    return sorted(folder.glob("rank-*.jsonl"))


class Known:
    """What stands in the file of one rank."""

    def __init__(self) -> None:
        self._named: set[int] = set()
        self._ranges: list[BatchRange] = []  # without names

    def add(self, entry: LeftOut) -> None:
        """It stands there now."""
        batches = entry.record.batches
        if entry.record.names:
            self._named.update(range(batches.first, batches.end))
        elif not self._holds_range(batches):
            self._ranges.append(batches)

    def holds(self, entry: LeftOut) -> bool:
        """Whether `entry` would say nothing new."""
        batches = entry.record.batches
        named = all(position in self._named for position in range(batches.first, batches.end))
        return named or (not entry.record.names and self._holds_range(batches))

    def _holds_range(self, batches: BatchRange) -> bool:
        return any(r.first <= batches.first and batches.end <= r.end for r in self._ranges)


def settled(entries: Iterable[LeftOut]) -> list[LeftOut]:
    """One entry for each rank and first position, in the order in which they came."""
    chosen: dict[tuple[int, int], LeftOut] = {}
    for entry in entries:
        key = entry.record.rank, entry.record.batches.first
        known = chosen.get(key)
        if known is None or (entry.record.names and not known.record.names):
            chosen[key] = entry
    return list(chosen.values())
