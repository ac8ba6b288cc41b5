"""GradScalers of a job whose ranks see different gradients: what one finds, all have found.

A scaler looks at this rank's gradients alone. Of pipeline stages, and of ranks with experts of
their own, one would skip its step and halve its scale while the others do neither, and the next
gradients would be unscaled by different numbers. So their findings are put together as soon as each
rank has its own, before anything is decided by them.
Invariants: one reduction of 4 bytes on the job's default group for each optimizer that a scaler
looks at, on all ranks; for optimizers that are not watched none. No value is read on the host.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from spikeguard.errors import AttachError
from spikeguard.faults import Faults
from spikeguard.optim.optimizers import trained_by
from spikeguard.topology.layout import Topology
from spikeguard.topology.rank_group import World, share_each

Found = Mapping[torch.device, Tensor]


class AgreedScaler:
    """In the place of the function by which a scaler looks for overflows; `remove` puts it back."""

    def __init__(
        self, scaler: Any, optimizers: Sequence[torch.optim.Optimizer], faults: Faults
    ) -> None:
        self._scaler, self._faults = scaler, faults
        self._watched = set(map(id, optimizers))
        self._device = trained_by(optimizers)[0].device  # on which the job's ranks meet
        self._inner: Callable[..., Found] = scaler._unscale_grads_
        self._own = self._looked
        scaler._unscale_grads_ = self._own

    def remove(self) -> None:
        """Each rank for itself again."""
        if vars(self._scaler).get("_unscale_grads_") is self._own:
            del self._scaler._unscale_grads_

    def _looked(self, optimizer: torch.optim.Optimizer, *args: Any, **named: Any) -> Found:
        found = self._inner(optimizer, *args, **named)
        if id(optimizer) in self._watched:
            with self._faults.shield("scaler"):
                self._agree(found)
        return found

    @torch.no_grad()
    def _agree(self, found: Found) -> None:
        own = [each.reshape(()).to(self._device, torch.float32) for each in found.values()]
        whole = torch.stack([*own, torch.zeros((), device=self._device)]).max()
        dist.all_reduce(whole, op=dist.ReduceOp.MAX)
        for each in found.values():
            each.fill_(0.0).add_(whole.to(each.device, non_blocking=True))


def scalers_of(given: Sequence[Any]) -> list[Any]:
    """Those of `state=`, or where there is none whatever lives in the process.

    No object says which scaler a loop will use, so all objects are looked through, once.
    """
    found = [each for each in given if isinstance(each, GradScaler)] or _living_scalers()
    return [each for each in found if each.is_enabled()]


def _living_scalers() -> list[Any]:
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, GradScaler)}
    return [each for each in objects if type(each) in kinds] if kinds else []


def agree_on_overflows(
    given: Sequence[Any],
    optimizers: Sequence[torch.optim.Optimizer],
    topology: Topology,
    world: World,
    faults: Faults,
) -> list[AgreedScaler]:
    """Where ranks see different gradients; raises `AttachError` on all ranks. Collective."""
    if not topology.cut_by_hand:
        return []
    scalers = scalers_of(given)
    ranks = [json.loads(n) for n in share_each(world, json.dumps([len(scalers), len(optimizers)]))]
    if not any(count for count, _ in ranks):
        return []
    for rank, counts in enumerate(ranks):
        if not counts[0] or counts[1] != ranks[0][1]:
            said = "a GradScaler" if counts[0] else "no GradScaler"
            raise AttachError(
                "state",
                f"rank {rank} has {said} and {counts[1]} optimizers, other ranks have not: an "
                "overflow on one of them could not be made known to all",
                "Make a torch.amp.GradScaler on every rank before attach(), or on none, for as "
                "many optimizers on each, and give it: state=[scaler]",
            )
    return [AgreedScaler(scaler, optimizers, faults) for scaler in scalers]
