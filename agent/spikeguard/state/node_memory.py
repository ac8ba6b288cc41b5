"""Ranks of one node that keep one copy of what they hold alike, each a part of it.

Under DistributedDataParallel every rank has the same weights and moments. Each keeps some of the
tensors in memory that its neighbours can read (`mapped_memory`), so a node keeps one copy instead
of one a rank. Going back, a rank reads its own part and its neighbours': no rank waits for another.
Invariants: who shares is found at `attach()` by reading each other's memory, not by names of hosts.
A part is read only after all ranks have voted that theirs is complete, and no rank writes to its
own before all have voted that they are back.
"""

from __future__ import annotations

import os
import re
import secrets
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from torch import Tensor

from spikeguard.ranks.rank_group import World, all_gather
from spikeguard.state.host_memory import HostMemory
from spikeguard.state.mapped_memory import Kind, MappedMemory, read_region
from spikeguard.state.replicated_parts import Part

PROBE = "probe-"
FILE = "/memfd:spikeguard"  # what a link to such a file says


class Place(NamedTuple):
    """What a rank tells the others of where it runs."""

    owner: str  # of the host memory
    available: int  # bytes of it
    local_ranks: int  # as the launcher says
    path: str = ""  # of its mapped memory; "": it has none
    probe: str = ""  # what lies there


def tell_places(world: World, memory: HostMemory, mapped: MappedMemory | None) -> list[Place]:
    """Where every rank runs, in their order. Collective."""
    probe = PROBE + secrets.token_hex(8)
    if mapped is not None:
        mapped.region(0, (), ()).hold(probe)
    path = mapped.path if mapped is not None else ""
    own = Place(memory.owner, memory.available, local_ranks(), path, probe)
    return all_gather(world, own)


def local_ranks() -> int:
    """How many ranks the launcher started on this node; 1 where it does not say."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(told) if re.fullmatch("[0-9]{1,9}", told) and int(told) > 0 else 1


class NodeMemory:
    """This rank's memory and that of its neighbours."""

    def __init__(self, rank: int, own: MappedMemory, others: Mapping[int, int], regions: int):
        """`others`: handles of the neighbours' files, by rank."""
        self._rank, self._others, self._regions = rank, dict(others), regions
        self.own = own
        self.ranks = tuple(sorted((rank, *others)))
        self._keepers: tuple[tuple[tuple[str, int], ...], dict[str, int]] = ((), {})
        for handle in others.values():
            weakref.finalize(self, os.close, handle)

    def kept(self, parts: Mapping[str, Part]) -> dict[str, Part]:
        """Those of `parts` that this rank keeps: about as many bytes as its neighbours."""
        sizes = tuple((name, Kind.of(part.tensor).nbytes) for name, part in parts.items())
        if sizes != self._keepers[0]:
            self._keepers = sizes, keepers(sizes, self.ranks)
        return {n: part for n, part in parts.items() if self._keepers[1][n] == self._rank}

    def found(self, name: str) -> dict[str, Tensor]:
        """What the neighbours keep of the state `name`."""
        tensors: dict[str, Tensor] = {}
        for handle in self._others.values():
            for number in range(self._regions):
                held = read_region(handle, number, name)
                if held is not None:
                    tensors |= held
                    break
        return tensors


def keepers(sizes: Sequence[tuple[str, int]], ranks: Sequence[int]) -> dict[str, int]:
    """Who keeps what: the largest first, each for the rank that has least so far."""
    loads = dict.fromkeys(ranks, 0)
    found = {}
    for name, size in sorted(sizes, key=lambda each: (-each[1], each[0])):
        found[name] = rank = min(loads, key=lambda each: (loads[each], each))
        loads[rank] += size
    return found


def join_node(
    world: World,
    places: Sequence[Place],
    mapped: MappedMemory | None,
    same_as: Sequence[int],
    regions: int,
) -> NodeMemory | None:
    """Find the ranks that hold the same and read each other's memory. Collective.

    None where this rank has no such neighbour.
    """
    handles = _readable(world.rank, places, same_as) if mapped is not None else {}
    read = all_gather(world, set(handles))
    group = neighbours(read, world.rank)
    for rank in handles.keys() - group:
        os.close(handles.pop(rank))
    if mapped is None or not handles:
        return None
    return NodeMemory(world.rank, mapped, handles, regions)


def neighbours(read: Sequence[set[int]], rank: int) -> set[int]:
    """The other ranks with which `rank` shares; `read`: of each rank whose memory it reads.

    None where they do not all see the very same ranks, as where containers part some of them.
    """

    def group(one: int) -> set[int]:
        return {one, *(other for other in read[one] if one in read[other])}

    own = group(rank)
    return own - {rank} if all(group(other) == own for other in own) else set()


def _readable(rank: int, places: Sequence[Place], same_as: Sequence[int]) -> dict[int, int]:
    """Handles of the memory of other ranks that hold the same, where it can be read."""
    handles = {}
    for other, place in enumerate(places):
        if other == rank or not place.path or same_as[other] != same_as[rank]:
            continue
        with suppress(OSError, ValueError):
            if not os.readlink(place.path).startswith(FILE):
                continue  # in a namespace of its own this number is another process's
            handle = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
            if read_region(handle, 0, place.probe) is not None:
                handles[other] = handle
            else:
                os.close(handle)
    return handles
