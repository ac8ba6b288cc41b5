"""How much host memory the snapshots may take, and how many fit, before the first is taken.

Without `Settings.snapshot_bytes` it is a share of what is free at `attach()` within the limits of
machine and cgroups, divided by the ranks that share that memory; a checkpoint's copy comes out of
it too. The smallest of all ranks' holds for all.
Invariants: how many fit is an estimate from what is known at `attach()`: the state as it stands,
and the moments that an optimizer of torch's own will make at its first step. A ring that cannot
hold one snapshot is not opened, so that nobody is told of a way back that there is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from spikeguard.faults import Faults, log
from spikeguard.ranks.layout import Topology
from spikeguard.ranks.rank_group import World
from spikeguard.ranks.shards import local
from spikeguard.ranks.vote import PINNED
from spikeguard.settings import GIB, Settings
from spikeguard.state.host_copies import tree_bytes
from spikeguard.state.host_memory import host_memory
from spikeguard.state.mapped_memory import open_mapped
from spikeguard.state.node_memory import Place, join_node, tell_places
from spikeguard.state.replicated_parts import Part
from spikeguard.state.staging_buffers import StagingBuffers
from spikeguard.state.targets import Tree


class Budget(NamedTuple):
    """Bytes on each rank, and for what."""

    limit: int
    others: int = 0  # states besides snapshots that have to fit: that of a checkpoint
    sharing: int = 1  # ranks of the node that keep one copy together


class Room(NamedTuple):
    """What the ring will hold."""

    size: int  # bytes of one snapshot on this rank
    holds: int  # snapshots


_ADAMS = tuple(getattr(torch.optim, name) for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax"))


def rank_limit(settings: Settings, places: Sequence[Place]) -> int:
    """Bytes for the snapshots of each rank; `places`: where all of them run."""
    if settings.snapshot_bytes:
        return settings.snapshot_bytes
    beside = Counter(place.owner for place in places)
    return min(
        int(settings.snapshot_share * place.available)
        // max(beside[place.owner], place.local_ranks)
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
    budget = Budget(rank_limit(settings, places), others, len(node.ranks) if node else 1)
    return StagingBuffers(faults, regions, mapped, node, on_cuda=on_cuda), budget


def _say_unmapped(faults: Faults, problem: object) -> None:
    faults.note("snapshots", f"no memory can be mapped, each rank keeps all it holds: {problem}")


def room_for(
    own: Tree,
    parts: Mapping[str, Part],
    optimizers: Sequence[torch.optim.Optimizer],
    settings: Settings,
    budget: Budget,
    leads: bool,
) -> Room:
    """How many snapshots fit, as the state will be; rank 0 tells.

    `own` and `parts`: what the rank has for itself, and what ranks hold together.
    """
    size = expected_bytes(own, parts, optimizers, budget.sharing)
    fit = budget.limit // max(size, 1)
    holds = min(settings.snapshots, fit, max(1, fit - budget.others))
    if leads:
        _tell(size, holds, settings, budget)
    return Room(size, holds)


def expected_bytes(
    own: Tree,
    parts: Mapping[str, Part],
    optimizers: Sequence[torch.optim.Optimizer],
    sharing: int = 1,
) -> int:
    """Bytes of a snapshot on this rank: what it keeps now, and of moments that are still to come.

    `sharing`: ranks that keep `parts` together, each about as much, and whole tensors.
    """
    to_come: list[int] = [
        _moments(type(optimizer), group) * local(parameter).numel() * parameter.element_size()
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and not optimizer.state.get(parameter)
    ]
    held = [tree_bytes(part.tensor) for part in parts.values()]
    together: int = max(-(-(sum(held) + sum(to_come)) // sharing), max(held, default=0))
    return tree_bytes(own) + together


def _moments(kind: type[torch.optim.Optimizer], group: dict[str, Any]) -> int:
    """Tensors like the parameter that the optimizer keeps of each; of a kind not known none.

    Another's `betas` say nothing: Lion keeps one moment, an 8-bit Adam bytes. What it has made is
    measured when a snapshot is taken.
    """
    if kind in _ADAMS:
        return 3 if group.get("amsgrad") else 2
    if kind is torch.optim.SGD:
        return 1 if group.get("momentum") else 0
    return 1 if kind is getattr(torch.optim, "Muon", None) else 0


def _tell(size: int, holds: int, settings: Settings, budget: Budget) -> None:
    said = f"snapshots in host memory: about {size / GIB:.3g} GiB each on this rank"
    if budget.sharing > 1:
        said += f", which {budget.sharing} ranks of the node keep together"
    said += f", the ring holds {holds} of {settings.snapshots}"
    if holds >= min(2, settings.snapshots):
        log.info("%s", said)
        return
    wanted = (settings.snapshots + budget.others) * size / GIB
    log.warning(
        "%s: %s. Raise %s to about %.3g GiB if the host has them, or set snapshot_every=0",
        said,
        "there is one way back, replaced every time" if holds else "no way back but checkpoints",
        f"Settings.snapshot_bytes ({budget.limit / GIB:.3g} GiB)",
        wanted,
    )
