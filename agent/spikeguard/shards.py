"""Sharded tensors (DTensor: FSDP2, tensor parallelism): this rank's part, and what parts add up to.

Law: nothing here is read on the host. `summed` is the one place that makes the job's own ranks meet
in a step, and callers enter it only where every rank does: what is measured at one rank's wish
travels as that rank's part (`own_norm`) and is added up elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of `tensor`; a plain tensor is its own."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_sharded(tensors: Iterable[Tensor]) -> bool:
    """Whether any of `tensors` is spread over ranks."""
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def alike(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Places in `tensors` of the sharded ones, those that lie alike on the same ranks together."""
    found: dict[object, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, DTensor):
            found.setdefault((tensor.device_mesh, tensor.placements), []).append(place)
    return list(found.values())


def settled(tensor: Tensor) -> Tensor:
    """`tensor` with sums over ranks that were still to be made (`Partial`) made."""
    if not isinstance(tensor, DTensor) or not any(p.is_partial() for p in tensor.placements):
        return tensor
    made: list[Placement] = [Replicate() if p.is_partial() else p for p in tensor.placements]
    return tensor.redistribute(placements=made)


def summed(squares: Tensor, like: Tensor) -> Tensor:
    """`squares` of this rank's parts, added up over the ranks that `like` is cut among.

    One reduction on the job's own group; equal bits on all of them. Collective.
    """
    assert isinstance(like, DTensor)
    cut: list[Placement] = [
        Replicate() if isinstance(p, Replicate) else Partial() for p in like.placements
    ]
    whole: Tensor = DTensor.from_local(squares, like.device_mesh, cut, run_check=False)
    return whole.full_tensor() if isinstance(whole, DTensor) else whole


def copies(tensor: Tensor) -> int:
    """How many ranks hold the same part of `tensor`; 1 in a job of one process."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    parts = 1
    if isinstance(tensor, DTensor):
        for dimension, placement in enumerate(tensor.placements):
            parts *= 1 if isinstance(placement, Replicate) else tensor.device_mesh.size(dimension)
    return max(1, dist.get_world_size() // parts)


def by_copies(tensors: Sequence[Tensor]) -> dict[int, list[Tensor]]:
    """This rank's parts of `tensors`, by how many ranks hold the same."""
    found: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(copies(tensor), []).append(local(tensor))
    return found


def shared_out(norm: Tensor, held_by: int) -> Tensor:
    """A part's norm such that the squares of the `held_by` ranks that hold it count it once."""
    return norm if held_by == 1 else norm * float(held_by) ** -0.5


def root(squares: Tensor) -> Tensor:
    """Norms of their squares, fp32."""
    return torch.sqrt(squares).float()
