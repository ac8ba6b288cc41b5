"""How the ranks of a job hold its model: alike, in parts that say so, or nobody can tell how.

Law: what needs all ranks to see the same (the reflex, one copy of a weight in a checkpoint) is done
only where that is known. Flat shards (FSDP1) are refused: a rank's norm would be taken for the
model's, so that one rank alone clipped, or dropped an update.
"""

from __future__ import annotations

import gc
from enum import StrEnum

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from spikeguard.errors import AttachError
from spikeguard.model_parts import Modules, parameters, unwrapped
from spikeguard.shards import is_sharded

_FLAT = "torch.distributed.fsdp.fully_sharded_data_parallel"  # known by name: it need not be loaded


class Layout(StrEnum):
    """What the ranks share of a model."""

    REPLICATED = "replicated"  # equal weights and, at the optimizer's step, equal gradients
    SHARDED = "sharded"  # DTensors: each rank's part, and norms over all of them
    UNKNOWN = "unknown"  # plain tensors that may differ: pipeline stages, experts, ZeRO


def layout_of(parts: Modules, stated: bool | None = None, unsaid: bool = False) -> Layout:
    """How the job's ranks hold `parts`; `stated`: what the user says of it, None for nothing.

    `unsaid`: of some parameters no mesh says what all ranks hold.
    """
    for part in parts:
        refuse_flat_shards(part)
    if is_sharded(parameters(parts)):
        if stated and not unsaid:
            remedy = "Leave it out: DTensors say themselves how they lie"
            raise AttachError("replicated", "the model holds parts of tensors", remedy)
        return Layout.SHARDED
    if not _has_several_ranks():
        return Layout.REPLICATED
    alike = says_replicated(parts) if stated is None else stated
    return Layout.REPLICATED if alike else Layout.UNKNOWN


def says_replicated(parts: Modules) -> bool | None:
    """True where each lies under DistributedDataParallel over all ranks, whole; else None."""
    return True if all(map(_says_replicated, parts)) else None


def _says_replicated(model: torch.nn.Module) -> bool:
    inner = getattr(model, "_orig_mod", model)
    wrapper = inner if isinstance(inner, DistributedDataParallel) else _wrapper_of(model)
    if wrapper is None or getattr(wrapper, "parameters_to_ignore", None):
        return False
    return bool(wrapper.process_group.size() == dist.get_world_size())


def _wrapper_of(model: torch.nn.Module) -> DistributedDataParallel | None:
    """The wrapper that somebody made of `model`, whose loop gave us what lies inside.

    A module does not know it, so all objects are looked through: about 0.1 s, once.
    """
    if not _has_several_ranks():
        return None
    own = unwrapped(model)
    found = (o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel))
    return next((wrapper for wrapper in found if unwrapped(wrapper) is own), None)


def _has_several_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def refuse_flat_shards(model: torch.nn.Module) -> None:
    """Raise `AttachError` where FSDP1 holds any part of `model`."""
    for module in model.modules():
        if any(kind.__module__ == _FLAT for kind in type(module).__mro__):
            raise AttachError(
                "model",
                "FullyShardedDataParallel (FSDP1) holds it in flat shards, normed rank by rank",
                "Shard it by fully_shard (FSDP2); under Accelerate with fsdp_version=2",
            )
