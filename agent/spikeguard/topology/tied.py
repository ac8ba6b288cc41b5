"""Parameters of which several pipeline stages hold a copy: an embedding tied to the last layer.

In one process they are one parameter. The stages keep their copies equal by adding up the
gradients, so each stage sees all of the gradient, and in every norm it counts once.
Which they are the user says, or a mark of Megatron's does, or their values: the weight of an
`nn.Embedding` that lies bit for bit on another stage too.
Invariants: every rank finds the same. Values are read at `attach()` alone, and only where there are
stages, somebody holds an embedding, and nobody has said what is tied.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from spikeguard.errors import AttachError
from spikeguard.faults import log
from spikeguard.topology.model_parts import Modules, named_parameters
from spikeguard.topology.rank_group import World, share_each
from spikeguard.topology.refusals import listed, raise_first, refusal_of
from spikeguard.topology.replicas import summed_bits
from spikeguard.topology.shards import coordinates, local

Member: TypeAlias = tuple[int, str]  # a stage, and what it calls the parameter
Tied: TypeAlias = frozenset[Member]  # one of each stage that holds a copy
MEGATRONS_MARK = "shared_embedding"
SAY_TIED = (
    "Give for each parameter the names that its stages call it by, as model.named_parameters() has "
    "them: tied=[('embedding.weight', 'head.weight')]; where other stages use such a name too, "
    "'stage0.weight'"
)


@dataclass(slots=True)
class Copy:
    """What one rank holds of a parameter that may be tied."""

    stage: int
    name: str
    shape: list[int]
    place: list[int]  # which part of it lies here
    bits: str = ""  # of that part; empty where all its values are equal, or nobody asks
    embeds: bool = False
    marked: bool = False


def find_tied(
    parts: Modules, stated: Sequence[Sequence[str]] | None, stage: int, world: World
) -> tuple[Tied, ...]:
    """What several stages hold a copy of; raises `AttachError` on all ranks. Collective."""
    said = None if stated is None else [list(names) for names in stated]
    asked = [said, [list(table.shape) for table in _tables(parts)]]
    ranks = [json.loads(text) for text in share_each(world, json.dumps(asked))]
    raise_first([refusal_of(_check_alike, [names for names, _ in ranks])])
    shapes = [shape for _, tables in ranks for shape in tables]
    own = _named(parts, stated, stage) if stated is not None else _candidates(parts, shapes, stage)
    told = share_each(world, json.dumps([astuple(copy) for copy in own]))
    copies = [Copy(*plain) for text in told for plain in json.loads(text)]
    if stated is None:
        found = _alike(copies)
        if world.leads and found:
            _tell(found)
        return found + _marked(copies, found)
    raise_first([refusal_of(_check_named, stated, copies)])
    return tuple(_members(names, copies) for names in stated)


def copies_on_stages(parts: Modules, stage: int, tied: Sequence[Tied]) -> dict[int, int]:
    """By id of a parameter of this rank's, on how many stages a copy of it lies."""
    named = dict(named_parameters(parts))
    own = [(name, len(group)) for group in tied for at, name in group if at == stage]
    return {id(named[name]): count for name, count in own}


def rows_of(
    stages: Sequence[int], told: Sequence[str], own: int, tied: Sequence[Tied]
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The names of all ranks' parameters, one for what is tied, and by name the row of each here.

    In an order that is equal on all ranks. Where stages name theirs alike the stage stands before.
    """
    first = {member: min(group) for group in tied for member in group}
    pairs = zip(stages, told, strict=True)
    held = dict.fromkeys((stage, n) for stage, text in pairs for n in text.split("\n") if n)
    rows = list(dict.fromkeys(first.get(member, member) for member in held))
    place = {member: row for row, member in enumerate(rows)}
    names = [name for _, name in rows]
    if len(set(names)) < len(names):
        names = [f"stage{stage}.{name}" for stage, name in rows]
    mine = {m[1]: place[first.get(m, m)] for m in held if m[0] == own}
    return tuple(names), mine


def _tables(parts: Modules) -> list[Tensor]:
    """The weights of the embeddings here."""
    held = (module for part in parts for module in part.modules())
    return [module.weight for module in held if isinstance(module, nn.Embedding)]


def _candidates(parts: Modules, shapes: Sequence[list[int]], stage: int) -> list[Copy]:
    """What has the shape of somebody's embedding, or Megatron's mark."""
    tables = set(map(id, _tables(parts)))
    found = []
    for name, parameter in named_parameters(parts):
        marked = bool(getattr(parameter, MEGATRONS_MARK, False))
        alike = list(parameter.shape) in shapes
        if marked or alike:
            bits = _bits(parameter) if alike else ""
            found.append(_copy(stage, name, parameter, bits, id(parameter) in tables, marked))
    return found


def _named(parts: Modules, stated: Sequence[Sequence[str]], stage: int) -> list[Copy]:
    wanted = {name for names in stated for name in names}
    return [
        _copy(stage, name, parameter)
        for name, parameter in named_parameters(parts)
        if name in wanted or f"stage{stage}.{name}" in wanted
    ]


def _copy(
    stage: int,
    name: str,
    parameter: Tensor,
    bits: str = "",
    embeds: bool = False,
    marked: bool = False,
) -> Copy:
    shape, place = list(parameter.shape), coordinates(parameter)
    return Copy(stage, name, shape, place, bits, embeds, marked)


@torch.no_grad()
def _bits(parameter: Tensor) -> str:
    """What stands for the values here; the host reads it. Empty where all are equal: zeros."""
    part = local(parameter.detach())
    if part.is_meta or not part.numel() or bool((part == part.flatten()[0]).all()):
        return ""
    return str(int(summed_bits(part)))


def _alike(copies: Sequence[Copy]) -> tuple[Tied, ...]:
    """An embedding, and what has its values on other stages, whatever they are called there."""
    held: dict[Member, dict[str, str]] = defaultdict(dict)
    for copy in copies:
        held[copy.stage, copy.name][str(copy.place)] = copy.bits
    embeds = {(copy.stage, copy.name) for copy in copies if copy.embeds}
    same: dict[str, list[Member]] = defaultdict(list)
    for member, bits in held.items():
        if all(bits.values()):
            same[json.dumps(bits, sort_keys=True)].append(member)
    return tuple(
        frozenset(members)
        for members in same.values()
        if not embeds.isdisjoint(members) and _once_each(members)
    )


def _marked(copies: Sequence[Copy], known: Sequence[Tied]) -> tuple[Tied, ...]:
    """What Megatron marks: the embedding of the first stage and its copy on the last."""
    members = {(copy.stage, copy.name) for copy in copies if copy.marked}
    if not _once_each(list(members)) or any(not group.isdisjoint(members) for group in known):
        return ()
    return (frozenset(members),)


def _once_each(members: Sequence[Member]) -> bool:
    """Whether several stages hold it, each of them once."""
    return len({stage for stage, _ in members}) == len(members) > 1


def _tell(found: Sequence[Tied]) -> None:
    for group in found:
        log.warning(
            "%s hold the same values: they are taken for one tied parameter, which counts once in "
            "norms and clipping. If they are trained apart, say attach(tied=())",
            " and ".join(f"{name!r} of stage {stage}" for stage, name in sorted(group)),
        )


def _members(names: Sequence[str], copies: Sequence[Copy]) -> Tied:
    wanted = set(names)
    return frozenset(
        (c.stage, c.name) for c in copies if {c.name, f"stage{c.stage}.{c.name}"} & wanted
    )


def _check_alike(said: Sequence[object]) -> None:
    if any(other != said[0] for other in said):
        raise AttachError("tied", "ranks say different things", "Say the same on every rank")


def _check_named(stated: Sequence[Sequence[str]], copies: Sequence[Copy]) -> None:
    """Raise `AttachError` where the names are not those of one parameter on several stages."""
    for names in stated:
        members = _members(names, copies)
        if not _once_each(list(members)):
            held = ", ".join(f"{name!r} of stage {stage}" for stage, name in sorted(members))
            problem = f"{listed(names)} name {held or 'nothing'}: not one parameter each of several"
            raise AttachError("tied", f"{problem} stages", SAY_TIED)
        shapes = {str(copy.shape) for copy in copies if (copy.stage, copy.name) in members}
        if len(shapes) > 1:
            problem = f"{listed(names)} have different shapes: {' and '.join(sorted(shapes))}"
            raise AttachError("tied", problem, SAY_TIED)


def check_tied(tied: object) -> None:
    """Raise `AttachError` for what are no names."""
    groups = tied if isinstance(tied, list | tuple) else None
    if groups is None or not all(isinstance(names, list | tuple) for names in groups):
        raise AttachError("tied", f"it is {tied!r:.80}", SAY_TIED)
    if not all(isinstance(name, str) for names in groups for name in names):
        raise AttachError("tied", f"it is {tied!r:.80}", SAY_TIED)
