"""Sharded tensors (DTensor: FSDP2, tensor parallelism): this rank's part of them.

Invariants: nothing here is read on the host. `settled` alone makes ranks meet, and only where the
gradients that the job's backward pass left lie otherwise than their parameters.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of `tensor`; a plain tensor is its own."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_sharded(tensors: Iterable[Tensor]) -> bool:
    """Whether any of `tensors` is spread over ranks."""
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def settled(gradient: Tensor, parameter: Tensor) -> Tensor:
    """`gradient` as its parameter lies: sums over ranks that were still to be made are made."""
    if not isinstance(gradient, DTensor) or not isinstance(parameter, DTensor):
        return gradient
    if gradient.placements == parameter.placements:
        return gradient
    return gradient.redistribute(placements=parameter.placements)


def coordinates(parameter: Tensor) -> list[int]:
    """Which part of it lies here: this rank's places along what cuts it."""
    if not isinstance(parameter, DTensor):
        return []
    placed = zip(parameter.device_mesh.get_coordinate() or [], parameter.placements, strict=True)
    return [n for n, placement in placed if not isinstance(placement, Replicate)]
