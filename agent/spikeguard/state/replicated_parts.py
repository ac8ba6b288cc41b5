"""Which tensors of a state the ranks hold together, and which each has for itself; copies of it.

A sharded tensor is everybody's: each rank has a part. A plain tensor of a model under
DistributedDataParallel, and of one process, is the same on all ranks, so one of them writes it.
Everything else (buffers, random numbers, what an unknown optimizer keeps) is the rank's own.
Bookkeeping on a tree of tensors; what is taken apart here is put together bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from spikeguard.optim.optimizers import trained_by
from spikeguard.ranks.layout import Job
from spikeguard.ranks.model_parts import is_packed, local, named_parameters, state_of, taken_apart
from spikeguard.state.lineage import Tree

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets in all of a tensor, and shape


@dataclass(frozen=True, slots=True)
class Mark:
    """Stands in a rank's own tree where a shared tensor stood."""

    name: str  # in the checkpoint
    offsets: tuple[int, ...]
    shape: tuple[int, ...]  # of this rank's part
    size: tuple[int, ...]  # of all of it
    dtype: torch.dtype

    @property
    def box(self) -> Box:
        """The part that the rank held which made the mark."""
        return self.offsets, self.shape


# Which part of a tensor this rank is to hold that another rank has marked; raises ValueError where
# that is not known.
BoxOf = Callable[[Mark], Box]
_PLAIN = {int, float, str, bool, type(None)}


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


def divided(
    tree: Tree,
    shared: Callable[[str, Tensor], bool],
    name_of: Callable[[str], str] = str,
) -> tuple[Tree, dict[str, Part]]:
    """`tree` without the tensors that `shared` says yes to, and those by name; copies nothing.

    `name_of`: what the tensor at a place of the tree is called in the checkpoint.
    """
    parts: dict[str, Part] = {}

    def taken(value: Any, place: str) -> Any:
        if not isinstance(value, Tensor):
            return value
        if is_packed(value):
            return taken_apart(value)
        part = part_of(value) if shared(place, value) else None
        if part is None:
            return local(value).detach()
        name, here = name_of(place), part.tensor
        parts[name] = part
        return Mark(name, part.offsets, tuple(here.shape), part.size, here.dtype)

    return mapped(tree, taken), parts


def mapped(tree: Any, of: Callable[[Any, str], Any], place: str = "") -> Any:
    """`tree` with what `of` makes of each value in its dicts, lists and tuples, and its place."""
    if isinstance(tree, dict):
        inside = f"{place}." if place else ""
        return {  # a key may be a tensor, whose text would be waited for
            key: mapped(each, of, f"{inside}{key if type(key) in _PLAIN else n}")
            for n, (key, each) in enumerate(tree.items())
        }
    if type(tree) in (list, tuple) and not is_plain(tree):
        return type(tree)(mapped(each, of, f"{place}.{n}") for n, each in enumerate(tree))
    return of(tree, place)


def is_plain(tree: Any) -> bool:
    """Whether it is a tuple of constants, as the 625 of Python's generator: one piece."""
    return type(tree) is tuple and set(map(type, tree)) <= _PLAIN


def values_in(tree: Any) -> list[Any]:
    """What its dicts, lists and tuples hold that is none of these."""
    values: list[Any] = []
    mapped(tree, lambda value, _: values.append(value))
    return values


def names_in(own: Tree) -> set[str]:
    """What the shared tensors are called that stood in a rank's own tree."""
    return {value.name for value in values_in(own) if isinstance(value, Mark)}


def joined(own: Tree, box_of: BoxOf = lambda mark: mark.box) -> tuple[Tree, dict[str, Part]]:
    """The tree that `divided` took apart, with empty tensors to be filled, and those by name.

    `box_of`: which part of a tensor is wanted.
    """
    parts: dict[str, Part] = {}

    def empty(value: Any, _: str) -> Any:
        if not isinstance(value, Mark):
            return value
        offsets, shape = box_of(value)
        tensor = torch.empty(shape, dtype=value.dtype)
        parts[value.name] = Part(tensor, offsets, value.size)
        return tensor

    return mapped(own, empty), parts


def joined_with(own: Tree, tensors: Mapping[str, Tensor]) -> Tree:
    """The tree that `divided` took apart, with `tensors`; ValueError where one is not as it was."""

    def found(value: Any, _: str) -> Any:
        if not isinstance(value, Mark):
            return value
        tensor = tensors.get(value.name)
        if tensor is None:
            raise ValueError(f"no rank of this node keeps {value.name}")
        if (tuple(tensor.shape), tensor.dtype) != (value.shape, value.dtype):
            raise ValueError(f"{value.name} is of another shape or type on another rank")
        return tensor

    tree: Tree = mapped(own, found)
    return tree


def part_of(tensor: Tensor) -> Part | None:
    """This rank's part; None where it is no single box."""
    if not isinstance(tensor, DTensor):
        return Part.whole(tensor.detach())
    chunks = tensor.__create_chunk_list__()  # DCP's own question: where does my shard lie?
    here = local(tensor).detach()
    if len(chunks) != 1 or tuple(chunks[0].sizes) != tuple(here.shape):
        return None
    return Part(here, tuple(chunks[0].offsets), tuple(tensor.shape))


def difference(one: Any, other: Any, place: str = "") -> str | None:
    """Where what two ranks have for themselves differs; None where it does not.

    A tensor of which another rank holds nothing is none of its own.
    """
    if isinstance(one, Mark):
        if isinstance(other, Tensor):
            return None if other.numel() == 0 else place
        alike = isinstance(other, Mark) and one.name == other.name
        same = alike and (one.size, one.dtype) == (other.size, other.dtype)
        return None if same else place
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return None if _bits(one) == _bits(other) else place
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return place
        pairs = [(one[key], other[key], f"{place}.{key}" if place else str(key)) for key in one]
    elif type(one) in (list, tuple) and type(one) is type(other) and len(one) == len(other):
        pairs = [(a, b, f"{place}.{n}") for n, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        return None if _plainly_equal(one, other) else place
    return next((d for a, b, where in pairs if (d := difference(a, b, where)) is not None), None)


def _bits(tensor: Tensor) -> tuple[Any, ...]:
    plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tensor.shape, tensor.dtype, bytes(plain.numpy())


def _plainly_equal(one: Any, other: Any) -> bool:
    try:
        same = one == other
        return type(one) is type(other) and bool(getattr(same, "all", lambda: same)())
    except Exception:  # what compares as it likes
        return False


def shape_mismatch(saved: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """Why `saved` model tensors do not fit `live` ones; None if they do."""
    if saved.keys() != live.keys():
        odd = sorted(saved.keys() ^ live.keys())[0]
        return f"the model has changed: {odd} is not in both"
    for name, tensor in saved.items():
        if getattr(tensor, "shape", None) != getattr(live[name], "shape", None):
            return f"the model has changed: {name} has another shape"
    return None


# ---- copies in host memory, on CUDA without a host wait ----------------------------------------


def host_copy(tree: Any, into: Any = None) -> Any:
    """A copy on the host of what `divided` returns; uses `into` where tensors fit.

    From CUDA the copies are queued into pinned memory on the current stream, before anything
    that later changes the originals, so the host need not wait; wait for an event to read them.
    The next backward pass waits for the link.
    """
    if isinstance(tree, Tensor):
        fits = isinstance(into, Tensor) and into.shape == tree.shape and into.dtype == tree.dtype
        if not fits:
            into = torch.empty(tree.shape, dtype=tree.dtype, pin_memory=tree.is_cuda)
        return into.copy_(tree, non_blocking=True)
    if isinstance(tree, dict):
        old = into if isinstance(into, dict) else {}
        return {key: host_copy(value, old.get(key)) for key, value in tree.items()}
    if is_plain(tree) or isinstance(tree, Mark):
        return tree
    if type(tree) in (list, tuple):
        same = isinstance(into, list | tuple) and len(into) == len(tree)
        olds = into if same else [None] * len(tree)
        return type(tree)(host_copy(v, o) for v, o in zip(tree, olds, strict=True))
    return copy.deepcopy(tree)


def event_after_copy() -> torch.cuda.Event | None:
    """After what was queued so far; None where the process uses no CUDA."""
    if not torch.cuda.is_initialized():
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def tree_bytes(tree: Any) -> int:
    """Bytes of all tensors in `tree`."""
    return sum(local(value).nbytes for value in values_in(tree) if isinstance(value, Tensor))


# ---- what shared tensors are called in a checkpoint -------------------------------------------


class StoredNames:
    """Of what `TrainingState.capture` holds."""

    def __init__(self, job: Job, names: Sequence[str]) -> None:
        """`names`: of the optimizers."""
        self._modules, self._topology = job.parts, job.topology
        self._known: dict[str, str] = {}  # by place
        self._parameters = dict(named_parameters(job.parts, remove_duplicate=False))
        self._parameter_names = {id(p): n for n, p in named_parameters(job.parts)}
        self.moments = tuple(  # where the state of each optimizer begins
            (f"optimizer.{name}.state.", optimizer)
            for name, optimizer in zip(names, job.optimizers, strict=True)
        )

    def name_at(self, place: str) -> str:
        """What a checkpoint calls the shared tensor at `place` of `capture()`.

        An optimizer's is called by its parameter, as torch's `get_optimizer_state_dict` does.
        Stages may name theirs alike, so each begins with its stage.
        """
        stored = self._known.get(place)
        if stored is None:
            found, stored = self._moment_at(place), place
            named = self._parameter_names.get(id(found[0])) if found is not None else None
            if found is not None and named is not None:
                stored = f"optimizer.state.{named}.{found[1]}"
            if self._topology.stages > 1:
                stored = f"stage{self._topology.stage}.{stored}"
            self._known[place] = stored
        return stored

    def _moment_at(self, place: str) -> tuple[Tensor, str] | None:
        """The parameter and the key of `optimizer.NAME.state.NUMBER.KEY`."""
        for prefix, optimizer in self.moments:
            number, _, key = place.removeprefix(prefix).partition(".")
            if place.startswith(prefix) and number.isdigit() and key:
                return trained_by([optimizer])[int(number)], key
        return None

    def box_of(self, mark: Mark) -> Box:
        """Where this rank's part lies in a tensor of a checkpoint of other ranks."""
        name, size = mark.name, mark.size
        if self._topology.stages > 1 or self._topology.groups or not self._topology.known:
            raise ValueError(
                "this job's ranks hold parts that no mesh of a DTensor describes (pipeline "
                "stages, shard groups, or nobody says what): it needs the number that saved it"
            )
        like = self._like(name)
        part = part_of(like) if like is not None else None
        if part is not None and part.size == size:
            return part.offsets, tuple(part.tensor.shape)
        if isinstance(like, DTensor) and tuple(like.shape) == size and not local(like).numel():
            return (0,) * like.ndim, tuple(local(like).shape)
        if like is None or (isinstance(like, DTensor) and size):
            raise ValueError(f"this job does not tell which part of {name} a rank is to hold")
        return (0,) * len(size), size

    def _like(self, name: str) -> Tensor | None:
        """The live tensor that lies as the one that a checkpoint calls `name`."""
        if name.startswith("model."):
            live = state_of(self._modules).get(name.removeprefix("model."))
            return live if isinstance(live, Tensor) else None
        named = name.removeprefix("optimizer.state.").rpartition(".")[0]
        if named in self._parameters:
            return self._parameters[named]
        found = self._moment_at(name)  # of a parameter that is not the model's
        return found[0] if found is not None else None
