"""An optimizer's sharded state that does not lie as its parameter does: one number a row or column.

A rank keeps its part of a state as a plain tensor. Where that has the shape of the parameter's part
it lies as the parameter; of any other it is to be known how it lay, when a fresh optimizer has no
state to tell.
Invariants: of torch's own optimizers there is none. Such a state lies on its parameter's mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement
from torch.optim import Optimizer

from spikeguard.topology.shards import local


class Laid(NamedTuple):
    """How a DTensor lies on its mesh."""

    placements: tuple[Placement, ...]
    shape: tuple[int, ...]  # of all of it
    stride: tuple[int, ...]


Layouts: TypeAlias = Mapping[str, Mapping[str, Sequence[Any]]]  # by place of the parameter, by key


def layouts_of(optimizer: Optimizer) -> Layouts:
    """Of what lies otherwise than its parameter; empty as a rule."""
    if type(optimizer).__module__.startswith("torch.optim."):
        return {}
    found = {}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            state = optimizer.state.get(parameter) if isinstance(parameter, DTensor) else None
            if isinstance(state, dict) and (odd := _odd(state, parameter)):
                found[place_of(number, place)] = odd
    return found


def place_of(group: int, place: int) -> str:
    """What a parameter is called in `Layouts`."""
    return f"{group}.{place}"


def new_like(kept: Tensor, like: DTensor, laid: Sequence[Any]) -> Tensor:
    """A new DTensor on the mesh of `like`, whose part here is to be filled with `kept`."""
    placements, shape, stride = laid
    here = torch.empty_like(kept, device=local(like).device)
    made: Tensor = DTensor.from_local(
        here,
        like.device_mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(stride),
    )
    return made


def _odd(state: Mapping[Any, Any], parameter: DTensor) -> dict[str, Laid]:
    return {
        key: Laid(tuple(value.placements), tuple(value.shape), tuple(value.stride()))
        for key, value in state.items()
        if isinstance(value, DTensor)
        and (value.shape, value.placements) != (parameter.shape, parameter.placements)
        and value.device_mesh == parameter.device_mesh
    }
