"""Recent states of the run in host memory, so that going back tens of steps needs no disk.

A ring of the newest `keep`, every `every` steps, together at most `limit` bytes a rank; while the
server protects one that would fall out of the ring it stays, at most `PINNED` of them. The
buffers of a snapshot that leaves are used again, so memory does not grow.
Invariants: what the ring holds is a function of step numbers and of what all ranks agreed on, so
every rank holds the same names; its room is the largest rank's, which travels with the step's vote.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spikeguard.ranks.vote import PINNED
from spikeguard.state.lineage import Target
from spikeguard.state.staging_buffers import Staged


@dataclass(slots=True, eq=False)
class Snapshot:
    """One state: of this rank, or its part of what the ranks of a node keep together."""

    target: Target
    staged: Staged


class Snapshots:
    """The ring."""

    def __init__(
        self, keep: int, limit: int, ranks: int = 1, others: int = 0, pinned: int = PINNED
    ) -> None:
        """`limit`: bytes a rank; with several the room is what the largest one has.

        `others`: states besides snapshots that have to fit too, as that of a checkpoint.
        """
        self._alone, self.bytes = ranks == 1, 0  # of the newest on this rank
        self._largest = 0  # of all ranks', once it is known
        self._keep, self._pinned, self._limit, self._others = keep, pinned, limit, others
        self._held: list[Snapshot] = []
        self.protected: frozenset[str] = frozenset()  # names of those that a decision may want

    @property
    def targets(self) -> list[Target]:
        """Oldest first."""
        return [snapshot.target for snapshot in self._held]

    def fits(self, size: int) -> bool:
        """Whether even one snapshot of so many bytes may be kept."""
        self.bytes = size
        return size <= self._limit

    def agree(self, largest: int) -> bool:
        """Take over what the largest rank's takes, all at the same boundary; whether it fits."""
        self._largest = largest
        return largest <= self._limit

    @property
    def known(self) -> bool:
        """Whether one was taken, on every rank."""
        return (self.bytes if self._alone else self._largest) > 0

    @property
    def room(self) -> int:
        """How many may be held; one, until the ranks know of each other."""
        size = max(1, self.bytes) if self._alone else self._largest
        return self.room_for(size) if size else 1

    def room_for(self, size: int) -> int:
        """How many of so many bytes."""
        fit = self._limit // max(1, size) - self._others
        return max(1, min(self._keep + self._pinned, fit))

    def make_room(self) -> list[str]:
        """For one more; returns the names that had to go for it."""
        gone, room = [], self.room
        while self._held and len(self._held) >= min(room, self._keep + self._kept_pins()):
            snapshot = self._oldest_free(room)
            self._held.remove(snapshot)
            snapshot.staged.release()
            gone.append(snapshot.target.name)
        return gone

    def add(self, target: Target, staged: Staged) -> None:
        """Keep what was copied as `target`."""
        self._held.append(Snapshot(target, staged))

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

    def forget(self, names: Iterable[str]) -> list[str]:
        """Drop those; returns the ones that were there."""
        unwanted = set(names)
        gone = [s for s in self._held if s.target.name in unwanted]
        self._held = [s for s in self._held if s.target.name not in unwanted]
        for snapshot in gone:
            snapshot.staged.release()
        return [snapshot.target.name for snapshot in gone]
