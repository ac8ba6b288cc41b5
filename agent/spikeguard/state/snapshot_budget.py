"""How much host memory the snapshots may take.

Without `Settings.snapshot_bytes` it is a share of what is free at `attach()` within the limits of
machine and cgroups, divided by the ranks that share that memory; a checkpoint's copy comes out of
it too. The smallest of all ranks' holds for all.
How many fit is known once the first was taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from spikeguard.faults import Faults
from spikeguard.ranks.layout import Topology
from spikeguard.ranks.rank_group import World
from spikeguard.ranks.vote import PINNED
from spikeguard.settings import Settings
from spikeguard.state.host_memory import host_memory
from spikeguard.state.mapped_memory import open_mapped
from spikeguard.state.node_memory import Place, join_node, tell_places
from spikeguard.state.snapshots import StagingBuffers

SHARE = 0.5  # of the free memory, for all ranks that share it


class Budget(NamedTuple):
    """Bytes on each rank, and for what."""

    limit: int
    others: int = 0  # states besides snapshots that have to fit: that of a checkpoint


def rank_limit(settings: Settings, places: Sequence[Place]) -> int:
    """Bytes for the snapshots of each rank; `places`: where all of them run."""
    if settings.snapshot_bytes:
        return settings.snapshot_bytes
    beside = Counter(place.owner for place in places)
    return min(
        int(SHARE * place.available) // max(beside[place.owner], place.local_ranks)
        for place in places
    )


def open_staging(
    world: World,
    topology: Topology,
    settings: Settings,
    faults: Faults,
    *,
    on_cuda: bool,
    checkpoints: bool,
) -> tuple[StagingBuffers, Budget]:
    """The buffers of snapshots and checkpoints, and what they may take. Collective.

    `on_cuda`: whether copies come from a GPU. `checkpoints`: whether the agent writes any, from a
    copy in host memory.
    """
    regions = settings.snapshots + PINNED + 1
    alike = world.size > 1 and topology.alike and settings.replica_checksum_every > 0
    mapped = open_mapped(regions, partial(_say_unmapped, faults)) if alike or on_cuda else None
    places = tell_places(world, host_memory(), mapped)
    node = join_node(world, places, mapped, topology.same_as, regions) if alike else None
    if node is None and not on_cuda:
        mapped = None
    others = int(checkpoints and not settings.snapshot_bytes)
    budget = Budget(rank_limit(settings, places), others)
    return StagingBuffers(faults, regions, mapped, node, on_cuda=on_cuda), budget


def _say_unmapped(faults: Faults, problem: object) -> None:
    faults.note("snapshots", f"no memory can be mapped, each rank keeps all it holds: {problem}")
