"""Which tensors of a state the ranks hold together, and which each has for itself.

A sharded tensor is everybody's: each rank has a part. A plain tensor of a model under
DistributedDataParallel, and of one process, is the same on all ranks, so one of them writes it.
Everything else (buffers, random numbers, what an unknown optimizer keeps) is the rank's own.
Law: pure bookkeeping on a tree of tensors; what is taken apart here is put together bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from spikeguard.state.targets import Tree
from spikeguard.topology.shards import local

_PLAIN = {int, float, str, bool, type(None)}
_MARK = "spikeguard.part"  # in a rank's own tree, where a shared tensor stood


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank holds of a tensor of `size`: the box at `offsets`."""

    tensor: Tensor
    offsets: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def whole(cls, tensor: Tensor) -> Part:
        """All of it."""
        return cls(tensor, (0,) * tensor.ndim, tuple(tensor.shape))

    def copied(self, tensor: Tensor) -> Part:
        """The same part, in another tensor."""
        return replace(self, tensor=tensor)


def divided(
    tree: Tree, shared: Callable[[str, Tensor], bool], prefix: str = ""
) -> tuple[Tree, dict[str, Part]]:
    """`tree` without the tensors that `shared` says yes to, and those by name; copies nothing.

    `prefix`: what their names begin with in the checkpoint.
    """
    parts: dict[str, Part] = {}

    def walk(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            part = _part_of(value) if shared(name, value) else None
            if part is None:
                return local(value).detach()
            parts[prefix + name] = part
            return {_MARK: prefix + name, "offsets": part.offsets, "size": part.size, **_kind(part)}
        if isinstance(value, dict):
            return {
                key: walk(item, f"{name}.{key}" if name else str(key))
                for key, item in value.items()
            }
        if type(value) in (list, tuple) and not is_plain(value):
            return type(value)(walk(item, f"{name}.{n}") for n, item in enumerate(value))
        return value

    return walk(tree, ""), parts


def is_plain(tree: Any) -> bool:
    """Whether it is a tuple of constants, as the 625 of Python's generator: one piece."""
    return type(tree) is tuple and set(map(type, tree)) <= _PLAIN


def is_mark(value: Any) -> bool:
    """Whether it stands where a shared tensor stood; there is no tensor in it."""
    return isinstance(value, dict) and _MARK in value


def joined(own: Tree) -> tuple[Tree, dict[str, Part]]:
    """The tree that `divided` took apart, with empty tensors to be filled, and those by name."""
    parts: dict[str, Part] = {}

    def empty(mark: Tree) -> Tensor:
        tensor = torch.empty(mark["shape"], dtype=mark["dtype"])
        parts[mark[_MARK]] = Part(tensor, tuple(mark["offsets"]), tuple(mark["size"]))
        return tensor

    return _put_back(own, empty), parts


def joined_with(own: Tree, tensors: Mapping[str, Tensor]) -> Tree:
    """The tree that `divided` took apart, with `tensors`; ValueError where one is not as it was."""

    def found(mark: Tree) -> Tensor:
        tensor = tensors.get(mark[_MARK])
        if tensor is None:
            raise ValueError(f"no rank of this node keeps {mark[_MARK]}")
        if (tuple(tensor.shape), tensor.dtype) != (tuple(mark["shape"]), mark["dtype"]):
            raise ValueError(f"{mark[_MARK]} is of another shape or type on another rank")
        return tensor

    tree: Tree = _put_back(own, found)
    return tree


def _put_back(value: Any, tensor_of: Callable[[Tree], Tensor]) -> Any:
    """`value` with a tensor for each mark."""
    if is_mark(value):
        return tensor_of(value)
    if isinstance(value, dict):
        return {key: _put_back(item, tensor_of) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_back(item, tensor_of) for item in value)
    return value


def _kind(part: Part) -> Mapping[str, Any]:
    return {"shape": tuple(part.tensor.shape), "dtype": part.tensor.dtype}


def _part_of(tensor: Tensor) -> Part | None:
    """This rank's part; None where it is no single box."""
    if not isinstance(tensor, DTensor):
        return Part.whole(tensor.detach())
    chunks = tensor.__create_chunk_list__()  # DCP's own question: where does my shard lie?
    here = local(tensor).detach()
    if len(chunks) != 1 or tuple(chunks[0].sizes) != tuple(here.shape):
        return None
    return Part(here, tuple(chunks[0].offsets), tuple(tensor.shape))
