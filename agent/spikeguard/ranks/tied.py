"""Parameters of which several pipeline stages hold a copy: an embedding tied to the last layer.

In one process they are one parameter. The stages keep their copies equal by adding up the
gradients, so each stage sees all of the gradient, and in every norm it counts once.
Which they are the user says. Every rank finds the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from spikeguard.errors import AttachError
from spikeguard.faults import log
from spikeguard.ranks.model_parts import Modules, named_parameters
from spikeguard.ranks.rank_group import World, all_gather, listed, raise_first, refusal_of

Member: TypeAlias = tuple[int, str]  # a stage, and what it calls the parameter
Tied: TypeAlias = frozenset[Member]  # one of each stage that holds a copy
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


def find_tied(
    parts: Modules, stated: Sequence[Sequence[str]] | None, stage: int, world: World
) -> tuple[Tied, ...]:
    """What several stages hold a copy of; raises `AttachError` on all ranks. Collective."""
    said = None if stated is None else [list(names) for names in stated]
    own = list(_copies(parts, stated, stage))
    tables = [(stage, list(weight.shape)) for weight in _embeddings(parts)]
    ranks = all_gather(world, (said, own, tables))
    raise_first([refusal_of(_check_alike, [rank[0] for rank in ranks])])
    copies = [copy for rank in ranks for copy in rank[1]]
    if stated is None:
        _warn(parts, [shape for rank in ranks for at, shape in rank[2] if at != stage])
        return ()
    raise_first([refusal_of(_check_named, stated, copies)])
    return tuple(_members(names, copies) for names in stated)


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


def _embeddings(parts: Modules) -> Iterator[Tensor]:
    held = (module for part in parts for module in part.modules())
    return (module.weight for module in held if isinstance(module, nn.Embedding))


def _warn(parts: Modules, shapes: Sequence[list[int]]) -> None:
    """Say what may be a copy of another stage's embedding, whose `shapes` these are."""
    found = [name for name, parameter in named_parameters(parts) if list(parameter.shape) in shapes]
    if found:
        log.warning(
            "%s here and an embedding of another stage have one shape: if they are tied, the norms "
            "count them twice. Say tied=[('embedding.weight', 'head.weight')], or tied=() if not",
            listed(found),
        )


def _copies(parts: Modules, stated: Sequence[Sequence[str]] | None, stage: int) -> Iterator[Copy]:
    """What lies here of that which is named."""
    wanted = {name for names in stated or () for name in names}
    for name, parameter in named_parameters(parts):
        if name in wanted or f"stage{stage}.{name}" in wanted:
            yield Copy(stage, name, list(parameter.shape))


def _once_each(members: Sequence[Member]) -> bool:
    """Whether several stages hold it, each of them once."""
    return len({stage for stage, _ in members}) == len(members) > 1


def _members(names: Sequence[str], copies: Sequence[Copy]) -> Tied:
    wanted = set(names)
    return frozenset(
        (c.stage, c.name) for c in copies if {c.name, f"stage{c.stage}.{c.name}"} & wanted
    )


def _check_alike(said: Sequence[object]) -> None:
    if any(other != said[0] for other in said):
        raise AttachError("ranks.tied", "ranks say different things", "Say the same on every rank")


def _check_named(stated: Sequence[Sequence[str]], copies: Sequence[Copy]) -> None:
    """Raise `AttachError` where the names are not those of one parameter on several stages."""
    for names in stated:
        members = _members(names, copies)
        if not _once_each(list(members)):
            held = ", ".join(f"{name!r} of stage {stage}" for stage, name in sorted(members))
            problem = f"{listed(names)} name {held or 'nothing'}: not one parameter each of several"
            raise AttachError("ranks.tied", f"{problem} stages", SAY_TIED)
        shapes = {str(copy.shape) for copy in copies if (copy.stage, copy.name) in members}
        if len(shapes) > 1:
            problem = f"{listed(names)} have different shapes: {' and '.join(sorted(shapes))}"
            raise AttachError("ranks.tied", problem, SAY_TIED)


def check_tied(tied: object) -> None:
    """Raise `AttachError` for what are no names."""
    groups = tied if isinstance(tied, list | tuple) else None
    if groups is None or not all(isinstance(names, list | tuple) for names in groups):
        raise AttachError("ranks.tied", f"it is {tied!r:.80}", SAY_TIED)
    if not all(isinstance(name, str) for names in groups for name in names):
        raise AttachError("ranks.tied", f"it is {tied!r:.80}", SAY_TIED)
