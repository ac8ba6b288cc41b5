"""What the user says of the ranks, where neither DDP around the model nor DTensors say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from spikeguard.errors import AttachError


def rows_of(
    stages: Sequence[int], told: Sequence[Sequence[str]], own: int
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The names of all ranks' parameters, and by name the row of each here.

    In an order that is equal on all ranks. Where stages name theirs alike the stage stands before.
    """
    pairs = zip(stages, told, strict=True)
    rows = list(dict.fromkeys((stage, n) for stage, names in pairs for n in names))
    names = [name for _, name in rows]
    mine = {name: row for row, (stage, name) in enumerate(rows) if stage == own}
    if len(set(names)) < len(names):
        names = [f"stage{stage}.{name}" for stage, name in rows]
    return tuple(names), mine


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
    """

    replicated: bool | None = None
    pipeline: RankGroup | None = None
    has_loss: bool | None = None
    shard_groups: Mapping[str, RankGroup] = field(default_factory=dict)

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
