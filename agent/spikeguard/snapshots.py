"""Recent states of the run in host memory, so that going back tens of steps needs no disk.

A ring of the newest `keep`, every `every` steps, together at most `limit` bytes a rank; while the
server protects one that would fall out of the ring it stays, at most `pinned` of them. The
buffers of a snapshot that leaves are used again, so memory does not grow.
Law: what the ring holds is a function of step numbers and of what all ranks agreed on, so every
rank holds the same names; its room is the largest rank's, which travels with the step's vote.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from spikeguard.host_copies import HostCopies
from spikeguard.targets import Target, Tree
from spikeguard.training_state import tree_bytes


@dataclass(slots=True, eq=False)
class Snapshot:
    """One state and, on CUDA, the event after which it can be read."""

    target: Target
    tree: Tree
    copied: torch.cuda.Event | None


class Snapshots:
    """The ring."""

    def __init__(self, keep: int, pinned: int, limit: int, ranks: int = 1) -> None:
        """`limit`: bytes a rank; with several the room is what the largest one has."""
        self._alone, self.bytes = ranks == 1, 0  # of the newest on this rank
        self._largest = 0  # of all ranks', once it is known
        self._keep, self._pinned, self._limit = keep, pinned, limit
        self._held: list[Snapshot] = []
        self._free: list[Tree] = []
        self.protected: frozenset[str] = frozenset()

    @property
    def targets(self) -> list[Target]:
        """Oldest first."""
        return [snapshot.target for snapshot in self._held]

    def fits(self, live: Tree) -> bool:
        """Whether even one snapshot of this size may be kept."""
        self.bytes = tree_bytes(live)
        return self.bytes <= self._limit

    def agree(self, largest: int) -> bool:
        """Take over what the largest rank's takes, all at the same boundary; whether it fits."""
        self._largest = largest
        return largest <= self._limit

    @property
    def _room(self) -> int:
        """How many may be held; one, until the ranks know of each other."""
        size = max(1, self.bytes) if self._alone else self._largest
        return max(1, min(self._keep + self._pinned, self._limit // size)) if size else 1

    def take(self, target: Target, live: Tree, copies: HostCopies) -> list[str]:
        """Keep a copy of `live` as `target`; returns the names that had to go for it."""
        self.bytes = tree_bytes(live)
        gone = self._make_room(self._room)
        free = self._free.pop() if self._free else None
        self._held.append(Snapshot(target, *copies.take(live, free, target.step)))
        self._free.clear()
        return gone

    def _make_room(self, room: int) -> list[str]:
        gone = []
        while self._held and len(self._held) >= min(room, self._keep + self._kept_pins()):
            snapshot = self._oldest_free(room)
            self._held.remove(snapshot)
            self._free = [snapshot.tree]
            gone.append(snapshot.target.name)
        return gone

    def _kept_pins(self) -> int:
        return min(self._pinned, sum(s.target.name in self.protected for s in self._held))

    def _oldest_free(self, room: int) -> Snapshot:
        pins = [s for s in self._held if s.target.name in self.protected]
        spared = pins[-self._pinned :] if self._pinned and room > 1 else []
        loose = [s for s in self._held if s not in spared]
        return (loose or self._held)[0]

    def find(self, name: str) -> Snapshot | None:
        """The snapshot of that name, if it is still there."""
        return next((s for s in self._held if s.target.name == name), None)

    def load(self, name: str) -> Tree | None:
        """The state to restore; waits on the host until the copy is complete."""
        snapshot = self.find(name)
        if snapshot is None:
            return None
        if snapshot.copied is not None:
            snapshot.copied.synchronize()
        return snapshot.tree

    def forget(self, names: Iterable[str]) -> list[str]:
        """Drop those; returns the ones that were there."""
        unwanted = set(names)
        gone = [s.target.name for s in self._held if s.target.name in unwanted]
        self._held = [s for s in self._held if s.target.name not in unwanted]
        return gone
