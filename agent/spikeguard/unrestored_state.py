"""State of a job that neither a rollback nor a restart restores, found at `attach()`.

A rollback restores parameters, buffers, the optimizers' `state_dict()`, the schedule and what
`state=` holds. Training code also keeps state in communication hooks of DDP, in plain attributes of
modules and optimizers, and in an optimizer inside another. It is named, and only read.
"""

from __future__ import annotations

import inspect
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from spikeguard.topology.layout import ddp_around
from spikeguard.topology.model_parts import Modules, named_modules

_OF_MODULES: Final = frozenset(vars(nn.Module()))
_OF_OPTIMIZERS: Final = frozenset(vars(torch.optim.SGD([torch.zeros(1)])))
_DRAWS: Final = (torch.Generator, random.Random)
_DEPTH: Final = 2  # containers within containers


def unrestored_state(
    parts: Modules, optimizers: Sequence[Optimizer], given: Sequence[Any]
) -> list[str]:
    """Where state lies that does not go back, as `PowerSGDState of a DDP hook`.

    `given`: the entries of `state=`. What one of them is, holds as an attribute, or reaches through
    its own methods counts as restored by it.
    """
    covered = {id(each) for item in given for each in _reached_by(item)}
    found = (*_in_hooks(parts), *_in_modules(parts), *_in_optimizers(optimizers))
    return list(dict.fromkeys(name for name, *owners in found if covered.isdisjoint(owners)))


def own_loaders(optimizers: Sequence[Optimizer], given: Iterable[Any]) -> list[str]:
    """Classes whose `load_state_dict` is not torch's own, so that only a rollback shows it works.

    `given`: the schedule and the entries of `state=`.
    """
    kinds = [type(each) for each in optimizers]
    own = [kind for kind in kinds if kind.load_state_dict is not Optimizer.load_state_dict]
    own += map(type, given)
    return [k.__name__ for k in dict.fromkeys(own) if not k.__module__.startswith("torch.")]


def _in_hooks(parts: Modules) -> Iterator[tuple[Any, ...]]:
    wrappers = (p if isinstance(p, DistributedDataParallel) else ddp_around(p) for p in parts)
    for wrapper in filter(None, wrappers):
        for _, state in getattr(wrapper, "_comm_hooks", ()):
            kind = type(state).__name__
            internal = state is None or isinstance(state, ProcessGroup) or kind.startswith("_")
            if not internal:
                yield f"{kind} of a DDP communication hook", id(state), id(wrapper)


def _in_modules(parts: Modules) -> Iterator[tuple[Any, ...]]:
    for name, module in named_modules(parts).items():
        registered = {_memory(t) for t in (*module.parameters(), *module.buffers())}
        computed = {getattr(h, "name", None) for h in module._forward_pre_hooks.values()}
        for attribute, value in vars(module).items():
            if attribute in _OF_MODULES or attribute in computed:
                continue
            if _is_state(value, registered):
                place = f"{name}.{attribute}" if name else attribute
                yield f"attribute {place} of the model", id(value), id(module)


def _in_optimizers(optimizers: Sequence[Optimizer]) -> Iterator[tuple[Any, ...]]:
    for optimizer in optimizers:
        kind = type(optimizer)
        if kind.__module__.startswith("torch.optim."):
            continue
        saved = {_memory(p) for group in optimizer.param_groups for p in group["params"]}
        if own := kind.state_dict is not Optimizer.state_dict:
            saved.update(map(_memory, _tensors(optimizer.state_dict(), 8)))
        for attribute, value in vars(optimizer).items():
            place = f"{kind.__name__}.{attribute}"
            if isinstance(value, Optimizer):
                if not own and value.state is not optimizer.state:
                    what = f"the state of {type(value).__name__} in {place}"
                    yield what, id(value), id(optimizer)
            elif attribute not in _OF_OPTIMIZERS and _is_state(value, saved):
                yield f"attribute {place}", id(value), id(optimizer)


def _is_state(value: Any, saved: set[int]) -> bool:
    """Whether `value` holds numbers that training may change and that are not saved elsewhere."""
    if isinstance(value, deque):
        return not any(isinstance(each, nn.Module | Optimizer) for each in value)
    if isinstance(value, _DRAWS):
        return not isinstance(value, random.SystemRandom)
    return any(t.grad_fn is None and _memory(t) not in saved for t in _tensors(value))


def _tensors(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict | list | tuple | set):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each, depth - 1)


def _memory(tensor: Tensor) -> int:
    """The same for two tensors of one storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except Exception:  # a tensor made of others has no storage
        return id(tensor)


def _reached_by(item: Any) -> Iterator[Any]:
    """What an entry of `state=` is, holds, or uses in its two methods."""
    yield item
    yield from getattr(item, "__dict__", {}).values()
    for method in (item.state_dict, item.load_state_dict):
        with suppress(TypeError, ValueError):  # no function of Python's
            seen = inspect.getclosurevars(getattr(method, "__func__", method))
            yield from (*seen.nonlocals.values(), *seen.globals.values())
