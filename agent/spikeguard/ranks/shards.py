"""Sharded tensors (DTensor: FSDP2, tensor parallelism): this rank's part of them.

Invariants: nothing here is read on the host. `settled` alone makes ranks meet, and only where the
gradients that the job's backward pass left lie otherwise than their parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of `tensor`; a plain tensor is its own, a sparse gradient its sums."""
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()
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


# ---- tensors that are made of other tensors ----------------------------------------------------
# Codes and scales of 8-bit moments, as torchao keeps them. Read as one tensor such a value is
# unpacked, and packed again it need not have the same bits; so a state that goes to the host and
# back holds the tensors inside, under a mark.

_MARK = "spikeguard.packed"


def is_packed(tensor: Tensor) -> bool:
    """Whether this rank's part of `tensor` is made of other tensors."""
    return type(tensor) is not Tensor and is_traceable_wrapper_subclass(local(tensor))


def taken_apart(tensor: Tensor) -> dict[str, Any]:
    """The tensors inside this rank's part, and what it takes to make it of them."""
    here: Any = local(tensor)
    names, context = here.__tensor_flatten__()
    inside = {name: getattr(here, name) for name in names}
    how = {"kind": type(here), "context": context, "size": tuple(here.shape)}
    return {_MARK: {**how, "stride": tuple(here.stride())}, "inside": inside}


def is_taken_apart(value: Any) -> bool:
    """Whether `value` is what `taken_apart` returns, or a copy of it."""
    return isinstance(value, dict) and _MARK in value


def put_into(live: Tensor, kept: Mapping[str, Any]) -> bool:
    """Fill a live tensor of the same kind with what was kept; whether it could be."""
    here: Any = local(live)
    if type(here) is not kept[_MARK]["kind"] or tuple(here.shape) != kept[_MARK]["size"]:
        return False
    for name, tensor in kept["inside"].items():
        getattr(here, name).copy_(tensor)
    return True


def put_together(kept: Mapping[str, Any], like: Tensor) -> Tensor:
    """A new tensor of what was kept, where `like` lies and, where it is one, a DTensor as it is."""
    how = kept[_MARK]
    inside = {name: tensor.to(local(like).device) for name, tensor in kept["inside"].items()}
    size, stride = torch.Size(how["size"]), how["stride"]
    made: Tensor = how["kind"].__tensor_unflatten__(inside, how["context"], size, stride)
    if isinstance(like, DTensor):
        return DTensor.from_local(
            made, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
        )
    return made
