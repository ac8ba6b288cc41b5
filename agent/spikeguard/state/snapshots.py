"""Host memory that the run's states are copied into, and the ring of the newest: going back tens
of steps needs no disk.

A snapshot and a checkpoint of the same step share one copy. Where CUDA copies, or where ranks of a
node keep one copy together, a buffer is a region of mapped memory (`node_memory`); elsewhere each
tensor has memory of its own. With CUDA a thread registers buffers before they are needed; one that
is not ready yet when it is needed is registered in the loop. A buffer that leaves the ring is used
again, so memory does not grow.
Without `Settings.snapshot_bytes` they may take a share of what is free at `attach()` within the
limits of machine and cgroups, divided by the ranks that share that memory; a checkpoint's copy
comes out of it too. The smallest of all ranks' holds for all.
At most `most` buffers; one that is held is not written to. What the ring holds is a
function of step numbers and of what all ranks agreed on, so every rank holds the same names; its
room is the largest rank's, which travels with the step's vote.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from spikeguard.faults import Faults
from spikeguard.ranks.layout import Topology
from spikeguard.ranks.rank_group import World
from spikeguard.ranks.vote import PINNED
from spikeguard.settings import Settings
from spikeguard.state.lineage import Target, Tree
from spikeguard.state.node_memory import (
    Kind,
    MappedMemory,
    NodeMemory,
    Place,
    Region,
    host_memory,
    join_node,
    tell_places,
)
from spikeguard.state.replicated_parts import (
    Mark,
    Part,
    divided,
    event_after_copy,
    host_copy,
    joined_with,
    mapped,
)

CLOSE_S = 5.0  # a piece of mapped memory is ready sooner
SMALL = 2**16  # bytes; a tensor of the rank's own below that has memory of its own
OWN = "own "  # before the number of a large one
SHARE = 0.5  # of the free memory, for all ranks that share it


class Buffer:
    """Memory for one state."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.holders = 0
        self.tree: Tree = {}  # what lies there: where a tensor fits it is copied over
        self.region: Region | None = None
        self.plan: Plan | None = None


Plan = tuple[tuple[str, ...], tuple[Kind, ...]]  # names and kinds of a region's tensors


def _laid_out(own: Tree, parts: Mapping[str, Part]) -> tuple[Tree, dict[str, Tensor]]:
    """`own` with marks for its large tensors, and these by name behind the `parts`."""
    number = count()
    small, large = divided(
        own, lambda _, tensor: tensor.nbytes >= SMALL, lambda _: f"{OWN}{next(number)}"
    )
    return small, {name: part.tensor for name, part in (*parts.items(), *large.items())}


def _plan(tensors: Mapping[str, Tensor]) -> Plan:
    return tuple(tensors), tuple(map(Kind.of, tensors.values()))


@dataclass(slots=True, eq=False)
class Staged:
    """A state on the host, complete once `copied` has passed; `parts` by their names.

    Of this rank, or its part of what the ranks of a node keep together.
    """

    target: Target
    own: Tree
    parts: Mapping[str, Part]
    copied: torch.cuda.Event | None
    buffer: Buffer
    node: NodeMemory | None = None

    def whole(self) -> Tree:
        """All of it, with what the neighbours keep; waits on the host until the copy is complete.

        Raises ValueError where a neighbour does not keep its part.
        """
        if self.copied is not None:
            self.copied.synchronize()
        found = {name: part.tensor for name, part in self.parts.items()}
        if self.node is not None:
            found |= self.node.found(self.target.name)
        return joined_with(self.own, found)

    def hold(self) -> Staged:
        """Keep it from being written to, once more."""
        self.buffer.holders += 1
        return self

    def release(self) -> None:
        """Let go of it once."""
        self.buffer.holders -= 1


class StagingBuffers:
    """All of them."""

    def __init__(
        self,
        faults: Faults,
        most: int,
        mapped: MappedMemory | None = None,
        node: NodeMemory | None = None,
        *,
        on_cuda: bool = False,
    ) -> None:
        self._faults, self.node = faults, node
        self._mapped, self.registers = mapped, mapped is not None and on_cuda
        self._buffers = [Buffer(number) for number in range(most)]
        self._lock = threading.Lock()  # on who prepares or takes which buffer
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._opened = False  # whether the newest state had its buffer made ready in the loop

    @property
    def ready(self) -> bool:
        """Whether the newest state found its buffer ready, and no thread makes others so."""
        return not self._opened and (self._thread is None or not self._thread.is_alive())

    def take(self, target: Target, own: Tree, parts: Mapping[str, Part]) -> Staged:
        """Copy the state of this step boundary; held once by who asked."""
        small, tensors = own, {name: part.tensor for name, part in parts.items()}
        if self._mapped is not None:
            small, tensors = _laid_out(own, parts)
        buffer, self._opened = self._free(), False
        if self._mapped is not None:
            self._map(buffer, _plan(tensors))
        region = buffer.region
        if region is not None:
            region.hold("")
        buffer.tree = host_copy({"own": small, "tensors": tensors}, buffer.tree)
        copied = event_after_copy()
        if region is not None:
            region.hold(target.name)
        buffer.holders = 1
        there: dict[str, Tensor] = buffer.tree["tensors"]

        def whole(value: Any, _: str) -> Any:
            large = isinstance(value, Mark) and value.name.startswith(OWN)
            return there[value.name] if large else value

        here = {name: replace(part, tensor=there[name]) for name, part in parts.items()}
        mine = buffer.tree["own"]
        mine = mapped(mine, whole) if len(there) > len(here) else mine
        return Staged(target, mine, here, copied, buffer, self.node)

    def prepare(self, own: Tree, parts: Mapping[str, Part], count: int) -> None:
        """Have `count` buffers ready before they are needed, where that takes time."""
        if not self.registers or self._thread is not None:
            return
        plan = _plan(_laid_out(own, parts)[1])
        self._thread = threading.Thread(
            target=self._prepare, args=(plan, count), name="spikeguard-staging", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Make no more buffers ready.

        A thread that is inside torch when the interpreter ends aborts the process.
        """
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def trim(self, count: int) -> None:
        """Give back the memory of free buffers, where more than `count` have any."""
        filled = [buffer for buffer in self._buffers if buffer.tree]
        free = [buffer for buffer in filled if not buffer.holders]
        for buffer in free[: max(0, len(filled) - count)]:
            _empty(buffer)

    def _prepare(self, plan: Plan, count: int) -> None:
        with self._faults.shield("snapshots"):
            for buffer in self._buffers[:count]:
                with self._lock:
                    closing = self._closing.is_set()
                    if not closing and not buffer.holders and buffer.region is None:
                        self._open(buffer, plan)

    def _free(self) -> Buffer:
        """A buffer that nobody holds; one that was used before where there is one."""
        free = [buffer for buffer in self._buffers if not buffer.holders]
        if not free:
            raise RuntimeError(f"all {len(self._buffers)} staging buffers are held")
        used = [buffer for buffer in free if buffer.tree or buffer.region is not None]
        return (used or free)[0]

    def _map(self, buffer: Buffer, plan: Plan) -> None:
        """Have the buffer's tensors lie in its region."""
        if buffer.plan != plan:
            self._opened = self.registers
            with self._lock:
                if buffer.plan != plan:
                    self._open(buffer, plan)
        if not buffer.tree and buffer.region is not None:
            tensors = dict(zip(plan[0], buffer.region.tensors, strict=True))
            buffer.tree = {"own": {}, "tensors": tensors}

    def _open(self, buffer: Buffer, plan: Plan) -> None:
        assert self._mapped is not None
        _empty(buffer)
        region = Region(self._mapped.handle, buffer.number, *plan)
        if self.registers and not region.register(self._closing.is_set):
            self._faults.note("snapshots", "CUDA does not register host memory: copies wait")
        buffer.region, buffer.plan = region, plan


def _empty(buffer: Buffer) -> None:
    buffer.tree = {}
    if buffer.region is not None:
        buffer.region.free()
    buffer.region = buffer.plan = None


# ---- the ring ----


class Snapshots:
    """The ring: the newest `keep`, together at most `limit` bytes a rank, and at most `PINNED` more
    that would fall out of it while the server protects them."""

    def __init__(self, keep: int, limit: int, ranks: int = 1, others: int = 0) -> None:
        """`limit`: bytes a rank; with several the room is what the largest one has.

        `others`: states besides snapshots that have to fit too, as that of a checkpoint.
        """
        self._alone, self.bytes = ranks == 1, 0  # of the newest on this rank
        self._largest = 0  # of all ranks', once it is known
        self._keep, self._limit, self._others = keep, limit, others
        self._held: list[Staged] = []
        self.protected: frozenset[str] = frozenset()  # names of those that a decision may want

    @property
    def targets(self) -> list[Target]:
        """Oldest first."""
        return [snapshot.target for snapshot in self._held]

    def fits(self, size: int) -> bool:
        """Whether even one snapshot of so many bytes may be kept."""
        self.bytes = size
        if self._alone:
            self._largest = size
        return size <= self._limit

    def agree(self, largest: int) -> bool:
        """Take over what the largest rank's takes, all at the same boundary; whether it fits."""
        self._largest = largest
        return largest <= self._limit

    @property
    def known(self) -> bool:
        """Whether one was taken, on every rank."""
        return self._largest > 0

    @property
    def room(self) -> int:
        """How many may be held; one, until the ranks know of each other."""
        return self.room_for(self._largest) if self._largest else 1

    def room_for(self, size: int) -> int:
        """How many of so many bytes."""
        fit = self._limit // max(1, size) - self._others
        return max(1, min(self._keep + PINNED, fit))

    def make_room(self) -> list[str]:
        """For one more; returns the names that had to go for it."""
        gone: list[str] = []
        while self._held:
            pins = [s for s in self._held if s.target.name in self.protected][-PINNED:]
            if len(self._held) < min(self.room, self._keep + len(pins)):
                break
            spared = pins if self.room > 1 else []
            oldest = next((s for s in self._held if s not in spared), self._held[0])
            gone += self.forget([oldest.target.name])
        return gone

    def add(self, staged: Staged) -> None:
        """Keep what was copied."""
        self._held.append(staged)

    def find(self, name: str) -> Staged | None:
        """The snapshot of that name, if it is still there."""
        return next((s for s in self._held if s.target.name == name), None)

    def forget(self, names: Iterable[str]) -> list[str]:
        """Drop those; returns the ones that were there."""
        unwanted = set(names)
        gone = [s for s in self._held if s.target.name in unwanted]
        self._held = [s for s in self._held if s.target.name not in unwanted]
        for snapshot in gone:
            snapshot.release()
        return [snapshot.target.name for snapshot in gone]


# ---- made at attach() ----


def open_stores(
    world: World,
    topology: Topology,
    settings: Settings,
    faults: Faults,
    *,
    on_cuda: bool,
    checkpoints: bool,
) -> tuple[Snapshots, StagingBuffers]:
    """The ring, and the buffers of snapshots and checkpoints. Collective.

    `on_cuda`: whether copies come from a GPU. `checkpoints`: whether the agent writes any, from a
    copy in host memory.
    """
    regions = settings.snapshots + PINNED + 1
    alike = world.size > 1 and topology.alike and settings.replica_checksum_every > 0
    mapped = None
    if alike or on_cuda:
        with faults.shield("snapshots"):  # where none can be mapped each rank keeps all it holds
            mapped = MappedMemory(regions)
    places = tell_places(world, host_memory(), mapped)
    node = join_node(world, places, mapped, topology.same_as, regions) if alike else None
    if node is None and not on_cuda:
        mapped = None
    others = int(checkpoints and not settings.snapshot_bytes)
    ring = Snapshots(settings.snapshots, rank_limit(settings, places), world.size, others)
    return ring, StagingBuffers(faults, regions, mapped, node, on_cuda=on_cuda)


def rank_limit(settings: Settings, places: Sequence[Place]) -> int:
    """Bytes for the snapshots of each rank; `places`: where all of them run."""
    if settings.snapshot_bytes:
        return settings.snapshot_bytes
    beside = Counter(place.owner for place in places)
    return min(
        int(SHARE * place.available) // max(beside[place.owner], place.local_ranks)
        for place in places
    )
