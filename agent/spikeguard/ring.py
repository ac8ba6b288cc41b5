"""How many snapshots the host memory that is allowed will hold, told before the first is taken.

Law: an estimate from what is known at `attach()`: the state as it stands, and the moments that an
optimizer of torch's own will make at its first step. A ring that cannot hold one is not opened, so
that nobody is told of a way back that there is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from spikeguard.faults import log
from spikeguard.settings import GIB, Settings
from spikeguard.shards import local
from spikeguard.targets import Tree
from spikeguard.training_state import tree_bytes


class Room(NamedTuple):
    """What the ring will hold."""

    size: int  # bytes of one snapshot on this rank
    holds: int  # snapshots


_ADAMS = tuple(getattr(torch.optim, name) for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax"))


def room_for(
    state: Tree, optimizers: Sequence[torch.optim.Optimizer], settings: Settings, leads: bool
) -> Room:
    """How many snapshots of `state`, as it will be, fit; rank 0 tells."""
    size = expected_bytes(state, optimizers)
    holds = min(settings.snapshots, settings.snapshot_bytes // max(size, 1))
    if leads:
        _tell(size, holds, settings)
    return Room(size, holds)


def expected_bytes(state: Tree, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Bytes of a snapshot on this rank: what `state` holds, and moments that are still to come."""
    to_come: int = sum(
        _moments(type(optimizer), group) * local(parameter).numel() * parameter.element_size()
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and not optimizer.state.get(parameter)
    )
    return tree_bytes(state) + to_come


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


def _tell(size: int, holds: int, settings: Settings) -> None:
    said = f"snapshots in host memory: about {size / GIB:.3g} GiB each on this rank, the ring holds"
    limit = f"Settings.snapshot_bytes ({settings.snapshot_bytes / GIB:.3g} GiB)"
    if holds >= min(2, settings.snapshots):
        log.info("%s %d of %d", said, holds, settings.snapshots)
        return
    wanted = settings.snapshots * size / GIB
    log.warning(
        "%s %d of %d: %s. Raise %s to about %.3g GiB if the host has them, or set snapshot_every=0",
        said,
        holds,
        settings.snapshots,
        "there is one way back, replaced every time" if holds else "no way back but checkpoints",
        limit,
        wanted,
    )
