"""What the user says of the ranks, where neither DDP around the model nor DTensors say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from spikeguard.errors import AttachError
from spikeguard.faults import log
from spikeguard.ranks.model_parts import Modules, named_parameters
from spikeguard.ranks.rank_group import World, all_gather, listed

# ---- parameters of which several pipeline stages hold a copy ------------------------------------


Member: TypeAlias = tuple[int, str]  # a stage, and what it calls the parameter
Tied: TypeAlias = frozenset[Member]  # one of each stage that holds a copy
SAY_TIED = (
    "Give for each parameter the names that its stages call it by, as model.named_parameters() has "
    "them: tied=[('embedding.weight', 'head.weight')]; where other stages use such a name too, "
    "'stage0.weight'"
)


def find_tied(
    parts: Modules, stated: Sequence[Sequence[str]] | None, stage: int, world: World
) -> tuple[Tied, ...]:
    """What several stages hold a copy of; raises `AttachError` on all ranks. Collective."""
    said = None if stated is None else [list(names) for names in stated]
    wanted = {name for names in stated or () for name in names}
    copies = {
        (stage, name): list(parameter.shape)
        for name, parameter in named_parameters(parts)
        if name in wanted or f"stage{stage}.{name}" in wanted
    }
    held = (module for part in parts for module in part.modules())
    tables = [(stage, list(each.weight.shape)) for each in held if isinstance(each, nn.Embedding)]
    ranks = all_gather(world, (said, copies, tables))
    if any(rank[0] != ranks[0][0] for rank in ranks):
        raise AttachError("ranks.tied", "ranks say different things", "Say the same on every rank")
    if said is None:
        _warn(parts, [shape for rank in ranks for at, shape in rank[2] if at != stage])
        return ()
    known = {member: shape for rank in ranks for member, shape in rank[1].items()}
    return tuple(_members(names, known) for names in said)


def _members(names: Sequence[str], copies: Mapping[Member, list[int]]) -> Tied:
    """Raise `AttachError` where the names are not those of one parameter on several stages."""
    shapes = {
        (stage, name): str(shape)
        for (stage, name), shape in copies.items()
        if name in names or f"stage{stage}.{name}" in names
    }
    if not len({stage for stage, _ in shapes}) == len(shapes) > 1:  # on each of them once
        held = ", ".join(f"{name!r} of stage {stage}" for stage, name in sorted(shapes))
        problem = f"{listed(names)} name {held or 'nothing'}: not one parameter each of several"
        raise AttachError("ranks.tied", f"{problem} stages", SAY_TIED)
    if len(set(shapes.values())) > 1:
        problem = f"{listed(names)} have different shapes: {' and '.join(sorted(shapes.values()))}"
        raise AttachError("ranks.tied", problem, SAY_TIED)
    return frozenset(shapes)


def copies_on_stages(parts: Modules, stage: int, tied: Sequence[Tied]) -> dict[int, int]:
    """By id of a parameter of this rank's, on how many stages a copy of it lies."""
    named = dict(named_parameters(parts))
    own = [(name, len(group)) for group in tied for at, name in group if at == stage]
    return {id(named[name]): count for name, count in own}


def rows_of(
    stages: Sequence[int], told: Sequence[Sequence[str]], own: int, tied: Sequence[Tied]
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The names of all ranks' parameters, one for what is tied, and by name the row of each here.

    In an order that is equal on all ranks. Where stages name theirs alike the stage stands before.
    """
    first = {member: min(group) for group in tied for member in group}
    pairs = zip(stages, told, strict=True)
    held = dict.fromkeys((stage, n) for stage, names in pairs for n in names)
    rows = list(dict.fromkeys(first.get(member, member) for member in held))
    place = {member: row for row, member in enumerate(rows)}
    names = [name for _, name in rows]
    if len(set(names)) < len(names):
        names = [f"stage{stage}.{name}" for stage, name in rows]
    mine = {m[1]: place[first.get(m, m)] for m in held if m[0] == own}
    return tuple(names), mine


def _warn(parts: Modules, shapes: Sequence[list[int]]) -> None:
    """Say what may be a copy of another stage's embedding, whose `shapes` these are."""
    found = [name for name, parameter in named_parameters(parts) if list(parameter.shape) in shapes]
    if found:
        log.warning(
            "%s here and an embedding of another stage have one shape: if they are tied, the norms "
            "count them twice. Say tied=[('embedding.weight', 'head.weight')], or tied=() if not",
            listed(found),
        )


# ---- what the user says -------------------------------------------------------------------------


RankGroup: TypeAlias = "dist.ProcessGroup | DeviceMesh"
GROUPS: tuple[type, ...] = (dist.ProcessGroup, DeviceMesh)
_GROUP_REMEDY = "Give for each pattern of parameter names a process group or a mesh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """What the ranks of the job hold, where neither DDP around the model nor DTensors say it.

    `replicated`: whether every rank has the same weights and, at each optimizer's step, the same
    gradients; None: as DistributedDataParallel around the model says. Without it, and without
    DTensors, several ranks are only reported of: what one of them alone drops would part them.
    `pipeline`: the process group, or mesh of one dimension, of the pipeline's stages.
    `has_loss`: whether this rank computes the loss, as those of the last stage do; elsewhere
    `guard.loss` notes nothing. To be said with `pipeline`.
    `shard_groups`: by pattern of parameter names (`*.experts.*`) the group whose ranks hold
    different parts of them, where no mesh of a DTensor says so.
    `tied`: names by which several stages call one parameter of which each holds a copy, as an
    embedding tied to the last layer.
    """

    replicated: bool | None = None
    pipeline: RankGroup | None = None
    has_loss: bool | None = None
    shard_groups: Mapping[str, RankGroup] = field(default_factory=dict)
    tied: Sequence[Sequence[str]] | None = None

    def check(self) -> None:
        """Raise `AttachError` for what cannot be meant."""
        for name, kind, remedy in (
            ("replicated", bool, "Give True, False, or None where DistributedDataParallel says it"),
            ("pipeline", GROUPS, "Give the process group or mesh of the stages, as mesh['pp']"),
            ("has_loss", bool, "Give True or False: whether this rank computes the loss"),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise AttachError(f"ranks.{name}", f"it is a {type(value).__name__}", remedy)
        if not isinstance(self.shard_groups, Mapping):
            problem = f"it is a {type(self.shard_groups).__name__}"
            raise AttachError("ranks.shard_groups", problem, f"Give a dict. {_GROUP_REMEDY}")
        for pattern, group in self.shard_groups.items():
            if not isinstance(pattern, str) or not isinstance(group, GROUPS):
                problem = f"it has {pattern!r}: {group!r:.80}"
                raise AttachError("ranks.shard_groups", problem, _GROUP_REMEDY)
            _check_mesh("shard_groups", group)
        if self.tied is not None:
            groups = self.tied if isinstance(self.tied, list | tuple) else [None]
            for names in groups:
                named = isinstance(names, list | tuple) and all(isinstance(n, str) for n in names)
                if not named:
                    raise AttachError("ranks.tied", f"it is {self.tied!r:.80}", SAY_TIED)
        if self.pipeline is None:
            return
        _check_mesh("pipeline", self.pipeline)
        if self.pipeline.size() > 1 and self.has_loss is None:
            raise AttachError(
                "ranks.has_loss",
                "pipeline is given, and nobody says which ranks compute the loss: what the other "
                "stages pass to guard.loss() would be averaged in",
                "Give has_loss=True on the ranks of the last stage and False on all others",
            )

    @property
    def stage(self) -> tuple[int, int]:
        """This rank's stage, and of how many."""
        return (0, 1) if self.pipeline is None else (own_rank(self.pipeline), self.pipeline.size())

    def groups_of(self, name: str) -> list[RankGroup]:
        """Those whose ranks hold different parts of the parameter."""
        return [group for pattern, group in self.shard_groups.items() if fnmatchcase(name, pattern)]


def own_rank(group: RankGroup) -> int:
    """This rank's place in it."""
    return group.get_local_rank() if isinstance(group, DeviceMesh) else group.rank()


def _check_mesh(argument: str, group: RankGroup) -> None:
    if isinstance(group, DeviceMesh) and group.ndim != 1:
        raise AttachError(
            f"ranks.{argument}",
            f"it has a mesh of {group.ndim} dimensions",
            "Give the one dimension, as mesh['pp']",
        )
