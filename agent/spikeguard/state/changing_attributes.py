"""Attributes of modules and optimizers that change while the loop trains and are not restored.

Whether an attribute is state cannot be seen at `attach()`: a mask, a table of frequencies and a
memory bank are tensors alike. So what has a value at `attach()` is compared while the loop trains,
twice at first and ever more rarely then. An attribute is reported if the same object has another
content, or if it is another object and the code of its class reads it; what is empty at `attach()`
or only written is a by-product of the step.
Values on a device are not read: a tensor's version counts its changes.
"""

from __future__ import annotations

import dis
import inspect
import random
import sys
import weakref
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import CodeType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikeguard.ranks.model_parts import Modules, named_modules

FIRST_LOOK: Final = 16  # steps of the attempt; each later look comes at twice as many
COMPARED: Final = 2 * FIRST_LOOK
_OF_MODULES: Final = frozenset(vars(nn.Module()))
_OF_OPTIMIZERS: Final = frozenset(vars(torch.optim.SGD([torch.zeros(1)])))
_SCALARS: Final = (int, float, complex)  # not bool: modes
_DEPTH: Final = 2  # containers within containers
_LEAVES: Final = 256  # of a container that are looked at
_BYTES: Final = 1 << 20  # of an array that are

Fingerprint = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class _Place:
    """One attribute."""

    owner: nn.Module | Optimizer
    attribute: str
    name: str  # for a person
    silent: bool  # named only once it has changed
    seen: Fingerprint | None = None  # of the newest look
    held: Any = None  # a weak reference to the object then, or its id

    def look(self) -> bool:
        """Whether it is state that has changed since the last look."""
        value = vars(self.owner).get(self.attribute)
        seen, before = _fingerprint(value), self.seen
        same = self.held is not None and _is_held(self.held, value)
        self.seen, self.held = seen, _hold(value)
        if seen is None or before is None or seen[0] != before[0]:
            return False
        if same:
            return seen != before
        changed = seen != before or isinstance(value, Tensor)
        kind: Any = type(self.owner)
        return changed and self.attribute in _read_by(kind)


class ChangingAttributes:
    """Those of one job, from `attach()` on."""

    def __init__(
        self, parts: Modules, optimizers: Sequence[Optimizer], given: Sequence[Any]
    ) -> None:
        """`given`: the entries of `state=`; what they save is not looked at."""
        saved = _SavedBy(given, (*parts, *optimizers))
        found = (*_of_modules(parts), *_of_optimizers(optimizers))
        self._places = [each for each in found if not saved.has(each)]
        self._next = FIRST_LOOK
        self.changed: list[str] = []  # names, in the order in which they were found

    @property
    def pending(self) -> list[str]:
        """Names of tensors, arrays, generators and queues that were not compared yet."""
        if self._next > COMPARED:
            return []
        return [each.name for each in self._places if not each.silent]

    def look(self, steps: int) -> bool:
        """Compare, if it is time after `steps` steps of this attempt; whether that is news."""
        if steps < self._next or not self._places:
            return False
        waiting, first = self.pending, self._next == FIRST_LOOK
        self._next *= 2
        found = [each for each in self._places if each.look() and not first]
        self._places = [each for each in self._places if each not in found]
        self.changed += [each.name for each in found]
        return bool(found) or waiting != self.pending


class _SavedBy:
    """What the entries of `state=` save.

    What an entry is, holds as an attribute, or reaches through its two methods counts, and every
    attribute that these methods name, if they reach a part of the model or an optimizer.
    """

    def __init__(self, given: Sequence[Any], roots: Iterable[Any]) -> None:
        self._ids = {id(each) for item in given for each in reached_by(item)}
        reaches = not self._ids.isdisjoint(map(id, roots))
        self._names = {n for item in given if reaches for n in _named_in(item)}

    def has(self, place: _Place) -> bool:
        value = vars(place.owner).get(place.attribute)
        own = not isinstance(value, _SCALARS) and id(value) in self._ids
        return own or id(place.owner) in self._ids or place.attribute in self._names


def reached_by(item: Any) -> Iterator[Any]:
    """What an entry of `state=` is, holds, or uses in its two methods."""
    yield item
    yield from getattr(item, "__dict__", {}).values()
    for method in (item.state_dict, item.load_state_dict):
        with suppress(TypeError, ValueError):  # no function of Python's
            seen = inspect.getclosurevars(getattr(method, "__func__", method))
            yield from (*seen.nonlocals.values(), *seen.globals.values())


def _named_in(item: Any) -> Iterator[str]:
    function = getattr(item.state_dict, "__func__", item.state_dict)
    if isinstance(code := getattr(function, "__code__", None), CodeType):
        yield from _words(code)


# ---- where numbers lie -------------------------------------------------------------------------


def _of_modules(parts: Modules) -> Iterator[_Place]:
    for name, module in named_modules(parts).items():
        registered = {memory(t) for t in (*module.parameters(), *module.buffers())}
        computed = {getattr(h, "name", None) for h in module._forward_pre_hooks.values()}
        torchs = type(module).__module__.startswith("torch.")
        for attribute, value in vars(module).items():
            if attribute in _OF_MODULES or attribute in computed:
                continue
            silent = _is_silent(value)
            if not (silent and torchs) and _is_state(value, registered):
                place = f"{name}.{attribute}" if name else attribute
                yield _Place(module, attribute, f"attribute {place} of the model", silent)


def _of_optimizers(optimizers: Sequence[Optimizer]) -> Iterator[_Place]:
    """Without numbers and generators, which are restored (`OptimizerAttributes`)."""
    for optimizer in optimizers:
        kind = type(optimizer)
        if kind.__module__.startswith("torch.optim."):
            continue
        saved = {memory(p) for group in optimizer.param_groups for p in group["params"]}
        if kind.state_dict is not Optimizer.state_dict:
            saved.update(map(memory, _tensors(optimizer.state_dict(), 8)))
        for attribute, value in vars(optimizer).items():
            restored = isinstance(value, (*_SCALARS, torch.Generator, random.Random))
            known = attribute in _OF_OPTIMIZERS or restored or isinstance(value, Optimizer)
            if not known and _is_state(value, saved):
                place = f"attribute {kind.__name__}.{attribute}"
                yield _Place(optimizer, attribute, place, _is_silent(value))


def _is_state(value: Any, saved: set[int]) -> bool:
    """Whether `value` holds numbers that training may change and that are not saved elsewhere."""
    if any(t.grad_fn is not None or memory(t) in saved for t in _tensors(value)):
        return False
    return _fingerprint(value) is not None


def _is_silent(value: Any) -> bool:
    """Whether it is of a kind of which most models have many that never change."""
    if isinstance(value, list | tuple | dict):
        return not any(isinstance(each, Tensor) or _is_array(each) for each in _leaves(value))
    return isinstance(value, _SCALARS)


def _tensors(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    return (each for each in _leaves(value, depth) if isinstance(each, Tensor))


def _leaves(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    if not isinstance(value, dict | list | tuple | set | deque):
        yield value
    elif depth:
        for each in list(value.values() if isinstance(value, dict) else value):
            yield from _leaves(each, depth - 1)


def memory(tensor: Tensor) -> int:
    """The same for two tensors of one storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except Exception:  # a tensor made of others has no storage
        return id(tensor)


# ---- whether they have changed -----------------------------------------------------------------


def _fingerprint(value: Any) -> Fingerprint | None:
    """The kind of `value` and what tells its content from another; None where it is no state.

    Exact for numbers, generators and arrays of up to 1 MiB; of longer arrays and containers a part.
    """
    if isinstance(value, bool | str | bytes):
        return None
    if isinstance(value, _SCALARS):
        return "number", value
    if isinstance(value, Tensor):
        return None if value.grad_fn is not None else ("tensor", _version(value))
    if _is_array(value):
        return "array", value.shape, _sum_of(value)
    if (drawn := _drawn(value)) is not None:
        return "generator", drawn
    if isinstance(value, list | deque | dict):
        return _of_container(value)
    return None


def _of_container(value: list[Any] | deque[Any] | dict[Any, Any]) -> Fingerprint | None:
    if not value and isinstance(value, dict):  # a cache, more often than not
        return None
    leaves = list(islice(_leaves(value), _LEAVES))
    found = [_fingerprint(each) for each in leaves]
    if any(each is None for each in found):
        return None
    objects = tuple(id(each) for each in leaves if isinstance(each, Tensor))
    return type(value).__name__, len(value), objects, tuple(found)


def _version(tensor: Tensor) -> int:
    try:
        return int(tensor._version)
    except RuntimeError:  # made in inference mode
        return 0


def _is_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.number):
        return False
    return bool(value.dtype.kind in "iufc")


def _sum_of(array: Any) -> int:
    numpy: Any = sys.modules["numpy"]
    step = 1 + array.nbytes // _BYTES
    return zlib.crc32(numpy.ascontiguousarray(array.reshape(-1)[::step]).tobytes())


def _drawn(value: Any) -> Any:
    """Where a generator of random numbers stands; None for what is none."""
    if isinstance(value, torch.Generator):
        return zlib.crc32(value.get_state().numpy().tobytes())
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return hash(value.getstate())
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState):
        source = getattr(value, "bit_generator", None) or value._bit_generator
        return zlib.crc32(repr(source.state).encode())
    return None


def _hold(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:  # lists and numbers: an id, which may be used again
        return id(value)


def _is_held(held: Any, value: Any) -> bool:
    if isinstance(value, _SCALARS):
        return False
    return held() is value if isinstance(held, weakref.ref) else held == id(value)


@cache
def _read_by(kind: type) -> frozenset[str]:
    """Attributes that the code of a class of the user's may read, its base classes included."""
    own = (each for each in kind.__mro__ if not each.__module__.startswith(("torch.", "builtins")))
    found = (f for each in own for f in vars(each).values())
    codes = (getattr(inspect.unwrap(f), "__code__", None) for f in found if callable(f))
    return frozenset(n for c in codes if isinstance(c, CodeType) for n in _read_in(c))


def _read_in(code: CodeType) -> Iterator[str]:
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(each.argval, str):
            yield each.argval
    yield from (c for c in code.co_consts if isinstance(c, str) and c.isidentifier())
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _read_in(inner)


def _words(code: CodeType) -> Iterator[str]:
    """Every name and text in it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _words(each)
        elif isinstance(each, str):
            yield each
