"""State that neither a rollback nor a restart restores, as far as `attach()` sees it.

Communication hooks of DDP and optimizers keep state outside their `state_dict()`: that is named. So
are tensors in plain attributes of a module, which are in no checkpoint of torch's either: whether
training changes them is not known.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from spikeguard.loop.capabilities import RESTORE_ALL, no, unknown
from spikeguard.optim.optimizers import trained_by
from spikeguard.ranks.model_parts import Modules
from spikeguard.ranks.rank_group import NAMED
from spikeguard_protocol import Ability

REMEDY: Final = (
    "Give attach(state=[...]) an object that saves and loads it. Nothing to do where training does "
    "not change it"
)
_OF_OPTIMIZERS: Final = frozenset(vars(torch.optim.SGD([torch.zeros(1)])))
Found = tuple[str, int, int]  # what a person calls it; ids of the object and of its owner


def restore_abilities(
    parts: Modules, optimizers: Sequence[Optimizer], given: Sequence[Any]
) -> tuple[Ability, ...]:
    """The row of the table; none where all goes back.

    `given`: the entries of `state=`. What one of them is, holds as an attribute, or reaches through
    its own methods counts as restored by it.
    """
    covered = {id(each) for item in given for each in _reached_by(item)}
    found = (*_in_hooks(parts), *_in_attributes(optimizers))
    names = list(dict.fromkeys(name for name, *ids in found if covered.isdisjoint(ids)))
    tensors = dict.fromkeys(n for n, *ids in _in_modules(parts) if covered.isdisjoint(ids))
    doubt = f"{_few([*tensors])} is not restored: make it a buffer if training changes it"
    if names:
        named = f"state that is not restored: {_few(names)}"
        return (no(RESTORE_ALL, f"{named}; {doubt}" if tensors else named, REMEDY),)
    return (unknown(RESTORE_ALL, doubt),) if tensors else ()


def _reached_by(item: Any) -> Iterator[Any]:
    """What an entry of `state=` is, holds, or uses in its two methods."""
    yield item
    yield from getattr(item, "__dict__", {}).values()
    for method in (item.state_dict, item.load_state_dict):
        with suppress(TypeError, ValueError):  # no function of Python's
            seen = inspect.getclosurevars(getattr(method, "__func__", method))
            yield from (*seen.nonlocals.values(), *seen.globals.values())


def _in_hooks(parts: Modules) -> Iterator[Found]:
    for wrapper in (part for part in parts if isinstance(part, DistributedDataParallel)):
        for _, state in getattr(wrapper, "_comm_hooks", ()):
            kind = type(state).__name__
            internal = state is None or isinstance(state, ProcessGroup) or kind.startswith("_")
            if not internal:
                yield f"{kind} of a DDP communication hook", id(state), id(wrapper)


def _in_attributes(optimizers: Sequence[Optimizer]) -> Iterator[Found]:
    """Of optimizers that are not torch's and save what torch's do."""
    trained = set(map(id, trained_by(optimizers)))
    for optimizer in optimizers:
        kind = type(optimizer)
        torchs = kind.__module__.startswith("torch.optim.")
        if torchs or kind.state_dict is not Optimizer.state_dict:
            continue
        for name, value in vars(optimizer).items():
            place = f"{kind.__name__}.{name}"
            if isinstance(value, Optimizer) and value.state is not optimizer.state:
                yield f"the state of {type(value).__name__} in {place}", id(value), id(optimizer)
            elif name not in _OF_OPTIMIZERS and _holds_numbers(value, trained):
                yield f"attribute {place}", id(value), id(optimizer)


def _in_modules(parts: Modules) -> Iterator[Found]:
    """Tensors, arrays and queues that are no parameter and no buffer."""
    kept = {id(t) for part in parts for t in (*part.parameters(), *part.buffers())}
    for module in (each for part in parts for each in part.modules()):
        if type(module).__module__.startswith("torch."):
            continue
        for name, value in vars(module).items():
            plain = isinstance(value, dict | list | tuple)  # its own parameters among them
            if not plain and _holds_numbers(value, kept):
                yield f"attribute {type(module).__name__}.{name}", id(value), id(module)


def _holds_numbers(value: Any, kept: set[int]) -> bool:
    """Whether it is, or holds, tensors other than those `kept`, or arrays; a queue may come to
    hold some."""
    if isinstance(value, dict | list | tuple):
        inside = value.values() if isinstance(value, dict) else value
        return any(_holds_numbers(each, kept) for each in inside)
    numpy: Any = sys.modules.get("numpy")
    array = numpy is not None and isinstance(value, numpy.ndarray | numpy.random.Generator)
    tensor = isinstance(value, Tensor) and id(value) not in kept
    return array or tensor or isinstance(value, deque)


def _few(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
