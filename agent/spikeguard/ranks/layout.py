"""Which ranks hold which parts of the model, and which of them compute a loss.

Made once, at `attach()`, from the parameters' meshes and from what the user says; norms, clipping,
skipping, votes and replica checks go by it. What is not understood is refused on all ranks.

Over all ranks, the local parts of a parameter divided by how many ranks hold a copy of each
(`Topology.copies`) add up to that parameter once. Nothing here is changed after `attach()`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

from spikeguard.errors import AttachError
from spikeguard.ranks.model_parts import (
    Modules,
    coordinates,
    named_parameters,
    parameters,
    uncovered,
)
from spikeguard.ranks.rank_group import World, all_gather, listed, raise_first, refusal_of, verb
from spikeguard.ranks.ranks import Ranks, copies_on_stages, find_tied, own_rank, rows_of

STAGES = frozenset({"pp", "pipe", "pipeline", "pipeline_parallel", "stage", "stages"})
SAY_PIPELINE = (
    "If these are pipeline stages, say ranks=Ranks(pipeline=GROUP, has_loss=BOOL): the process "
    "group or mesh of the stages, and whether this rank computes the loss"
)
SAY_COPIES = (
    "if all ranks hold the same there and have the same gradients when the optimizer steps, say "
    "ranks=Ranks(replicated=True); if they hold different parts, "
    "ranks=Ranks(shard_groups={PATTERN: GROUP})"
)
_FLAT = "torch.distributed.fsdp.fully_sharded_data_parallel"  # by name: it need not be loaded


@dataclass(frozen=True, slots=True)
class Topology:
    """What the ranks hold, as this rank sees it; a job of one process by default."""

    ranks: int = 1
    known: bool = True  # False: plain tensors of which nobody says what other ranks hold
    parted: bool = False  # whether norms are sums over the ranks; else each rank has all
    stage: int = 0
    stages: int = 1  # of a pipeline
    holders: int = 1  # ranks that hold this stage, in copies or in parts
    has_loss: bool = True
    rows: tuple[str, ...] = ()  # parameters of all ranks, where ranks hold different ones
    own_rows: tuple[int, ...] = ()  # places in `rows` of this rank's
    groups: Mapping[int, int] = field(default_factory=dict)  # by id: size of its shard group
    tied: Mapping[int, int] = field(default_factory=dict)  # by id: stages that hold a copy of it
    same_as: tuple[int, ...] = (0,)  # of each rank, the first one that holds the very same parts

    @property
    def alike(self) -> bool:
        """Whether every rank holds the whole model."""
        return self.known and not self.parted

    @property
    def replicas(self) -> bool:
        """Whether some ranks hold the very same weights, or may: of which nobody says anything."""
        return len(set(self.same_as)) < self.ranks

    def copies(self, parameter: Tensor) -> int:
        """How many ranks hold the same part of `parameter` as this one."""
        if not self.parted:
            return 1  # this rank's norm is the job's
        parts = _mesh_parts(parameter) * self.groups.get(id(parameter), 1)
        return max(1, self.holders // parts) * self.tied.get(id(parameter), 1)


@dataclass(frozen=True, slots=True)
class Job:
    """What a job is made of, as one rank sees it; described once, at `attach()`.

    Norms, clipping, skipping, the scaling of rates and the saving of states go by it. Ranks differ
    in what they hold, not in what is known.
    """

    parts: tuple[torch.nn.Module, ...]  # one, or those of a model that is cut into several
    optimizers: tuple[torch.optim.Optimizer, ...]  # each parameter that trains has one of them
    topology: Topology
    unsaved: str = ""  # why; empty where state_dict and load_state_dict work


def _mesh_parts(parameter: Tensor) -> int:
    """Into how many parts its mesh cuts `parameter`."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh, placements = parameter.device_mesh, enumerate(parameter.placements)
    return math.prod(mesh.size(n) for n, p in placements if not isinstance(p, Replicate))


@dataclass(slots=True)
class Seen:
    """What one rank tells the others."""

    common: str  # a digest of names and shapes of what all ranks of a stage hold
    names: str  # a digest of all names
    held: str  # a digest of which part of each lies here
    stage: int
    stages: int
    has_loss: bool | None
    unmatched: tuple[str, ...]  # patterns of `shard_groups` that name nothing here


def find_topology(parts: Modules, stated: Ranks, world: World) -> Topology:
    """How the ranks hold `parts`; raises `AttachError` on all of them where one must refuse.

    Collective.
    """
    names = [name for name, _ in named_parameters(parts)]
    unmatched = [p for p in stated.shard_groups if not any(fnmatchcase(n, p) for n in names)]
    own = Seen(
        _digest(_common(parts, stated)),
        _digest(names),
        _digest(_places(parts, stated)),
        *stated.stage,
        stated.has_loss,
        tuple(unmatched),
    )
    ranks = all_gather(world, own)
    stages = [seen.stage for seen in ranks]
    holders = stages.count(own.stage)
    if world.size > 1:
        _check_alike(stated, ranks)
        if len({(seen.stage, seen.common) for seen in ranks}) > len(set(stages)):
            _refuse_different(all_gather(world, _common(parts, stated)), stages)
        raise_first(all_gather(world, refusal_of(_check_held, parts, stated, holders)))
    tied = find_tied(parts, stated.tied, own.stage, world) if own.stages > 1 else ()
    kinds = [(seen.stage, seen.names) for seen in ranks]
    told: list[list[str]] = [[]] * world.size
    if len(set(kinds)) > 1:  # one of each kind tells the others its names
        told = all_gather(world, names if kinds.index(kinds[world.rank]) == world.rank else [])
    rows, own_rows = rows_of(stages, told, own.stage, tied)
    parted = own.stages > 1 or bool(stated.shard_groups) or _has_meshes(parts)
    held = [(seen.stage, seen.held) for seen in ranks]
    return Topology(
        world.size,
        parted or holders == 1 or bool(_copied(parts, stated, holders)),
        parted,
        own.stage,
        own.stages,
        holders,
        stated.has_loss is not False,
        rows,
        tuple(own_rows[name] for name in names) if rows else (),
        _group_sizes(parts, stated),
        copies_on_stages(parts, own.stage, tied),
        tuple(held.index(part) for part in held),
    )


def says_replicated(parts: Modules, ranks: int | None = None) -> bool | None:
    """True where each lies under DistributedDataParallel over `ranks` (all), whole; else None."""
    if ranks is None:
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    return True if all(_replicated_on(part, ranks) for part in parts) else None


def _replicated_on(model: torch.nn.Module, ranks: int) -> bool:
    inner = uncovered(model)
    if not isinstance(inner, DistributedDataParallel):
        return False
    hooks = [getattr(hook, "__name__", "") for hook, _ in getattr(inner, "_comm_hooks", ())]
    # under local SGD ranks step by gradients of their own and average weights later
    if any("localsgd" in name.lower() for name in hooks):
        return False
    if getattr(inner, "parameters_to_ignore", None):
        return False
    return bool(inner.process_group.size() == ranks)


def _copied(parts: Modules, stated: Ranks, holders: int) -> bool | None:
    return says_replicated(parts, holders) if stated.replicated is None else stated.replicated


def refuse_flat_shards(model: torch.nn.Module) -> None:
    """Raise `AttachError` where FSDP1 holds any part of `model`."""
    for module in model.modules():
        if any(kind.__module__ == _FLAT for kind in type(module).__mro__):
            raise AttachError(
                "model",
                "FullyShardedDataParallel (FSDP1) holds it in flat shards, normed rank by rank",
                "Shard it by fully_shard (FSDP2); under Accelerate with fsdp_version=2",
            )


# ---- stages of a pipeline ----------------------------------------------------------------------


def _check_alike(stated: Ranks, ranks: Sequence[Seen]) -> None:
    """Raise `AttachError` where the ranks say different things, or all say what means nothing."""
    if len({seen.stages for seen in ranks}) > 1:
        other = next(r for r, seen in enumerate(ranks) if seen.stages != ranks[0].stages)
        raise AttachError(
            "ranks.pipeline",
            f"it has {ranks[0].stages} stages on rank 0 and {ranks[other].stages} on rank {other}",
            "Give the group or mesh of the same pipeline on every rank",
        )
    if ranks[0].stages > 1 and not any(seen.has_loss for seen in ranks):
        raise AttachError(
            "ranks.has_loss",
            "it is False on every rank",
            "Give True on the ranks of the last stage",
        )
    nowhere = set(stated.shard_groups).intersection(*[set(seen.unmatched) for seen in ranks])
    if nowhere:
        raise AttachError(
            "ranks.shard_groups",
            f"{listed(sorted(nowhere))} {verb(sorted(nowhere), 'names', 'name')} no parameter",
            "Give patterns of names as model.named_parameters() has them",
        )


# ---- what lies where ---------------------------------------------------------------------------


def _has_meshes(parts: Modules) -> bool:
    return any(isinstance(p, DTensor) for p in parameters(parts))


def _group_sizes(parts: Modules, stated: Ranks) -> dict[int, int]:
    """By id of a parameter, on how many ranks its parts beyond its mesh lie."""
    named = [(p, stated.groups_of(name)) for name, p in named_parameters(parts)]
    return {id(p): math.prod(ranks.size() for ranks in groups) for p, groups in named if groups}


def _common(parts: Modules, stated: Ranks) -> list[str]:
    """A line for each parameter, equal on two ranks that hold copies or parts of the same model."""
    named = named_parameters(parts)
    return [f"{n} {list(p.shape)}" for n, p in named if not stated.groups_of(n)]


def _places(parts: Modules, stated: Ranks) -> list[str]:
    """A line for each parameter, equal on two ranks that hold the same part of it."""
    return [
        f"{name} {coordinates(p)} {[own_rank(ranks) for ranks in stated.groups_of(name)]}"
        for name, p in named_parameters(parts)
    ]


def _check_held(parts: Modules, stated: Ranks, holders: int) -> None:
    """Raise `AttachError` where it is not known what the `holders` of this stage hold of it."""
    if holders == 1 and stated.pipeline is None:
        return
    groups, meshes = _group_sizes(parts, stated), _has_meshes(parts)
    loose = []  # what neither a mesh nor a shard group accounts for on all of them
    for name, parameter in named_parameters(parts):
        if parameter.requires_grad:
            _check_mesh_of(name, parameter, stated, groups, holders)
            mesh = parameter.device_mesh.size() if isinstance(parameter, DTensor) else 1
            if mesh * groups.get(id(parameter), 1) != holders:
                loose.append(name)
    if not (meshes or stated.shard_groups or stated.pipeline is not None):
        return
    if stated.replicated and meshes and not loose:
        remedy = "Leave it out: DTensors say themselves how they lie"
        raise AttachError("ranks.replicated", "the model holds parts of tensors", remedy)
    if loose and not _copied(parts, stated, holders):
        raise AttachError(
            "model",
            f"{listed(loose)} {verb(loose, 'lies', 'lie')} in plain tensors or on a mesh of some "
            "ranks: what the other ranks hold of it is not known, so that they could clip and skip "
            "differently",
            f"Shard all parameters over a mesh of all ranks (fully_shard(model)); or, {SAY_COPIES}",
        )


def _check_mesh_of(
    name: str, parameter: Tensor, stated: Ranks, groups: Mapping[int, int], holders: int
) -> None:
    """Raise `AttachError` where its mesh says something else than the user."""
    stage = _stage_of(parameter) if isinstance(parameter, DTensor) else None
    if stage is not None and stated.pipeline is None:
        raise AttachError(
            "model",
            f"the mesh of {name!r} belongs to one with a dimension {stage!r}: a bad update "
            "would be skipped on one pipeline stage and made on the other",
            SAY_PIPELINE,
        )
    cut = _mesh_parts(parameter) * groups.get(id(parameter), 1)
    if holders % cut:
        raise AttachError(
            "ranks.shard_groups",
            f"{name!r} would lie in {cut} parts on {holders} ranks",
            "Give the group whose ranks hold different parts of it, beyond its own mesh",
        )


def _stage_of(parameter: DTensor) -> str | None:
    """The name of a pipeline's dimension in the mesh that the parameter's one was cut from."""
    mesh: Any = parameter.device_mesh
    whole = mesh
    with suppress(Exception):  # no public name leads to it; before 2.8 it lay elsewhere
        found = getattr(mesh, "_get_root_mesh", None)
        whole = found() if found else device_mesh._mesh_resources.get_root_mesh(mesh)
    for dimension, name in enumerate(whole.mesh_dim_names or ()):
        if name in STAGES and whole.size(dimension) > 1:
            return str(name)
    return None


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _refuse_different(held: Sequence[Sequence[str]], stages: Sequence[int]) -> None:
    """Raise `AttachError` for the first rank that holds other parameters than one of its stage."""
    one, other = next(
        (one, other)
        for other, lines in enumerate(held)
        for one in range(other)
        if stages[one] == stages[other] and held[one] != lines
    )
    alone = []
    for rank, another in ((one, other), (other, one)):
        known = set(held[another])
        if names := [line.partition(" ")[0] for line in held[rank] if line not in known]:
            alone.append(f"rank {rank} alone {listed(names)}")
    raise AttachError(
        "model",
        f"ranks of one stage hold different parameters ({', '.join(alone) or 'in another order'}): "
        "a bad update would be skipped on one rank and made on the other, and each would be "
        "clipped by its own norm",
        f"{SAY_PIPELINE}. If they are experts, say ranks=Ranks(shard_groups={{PATTERN: GROUP}})",
    )
