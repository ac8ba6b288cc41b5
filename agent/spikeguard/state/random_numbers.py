"""The random numbers of a job: the generators of python, torch, its GPUs and numpy, and those
that objects of the job hold.

The latter are looked for in attributes, at most `MOST` objects; one in a worker process, a closure
or a global is not found.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import torch

from spikeguard.state.lineage import Tree

MOST, FEW = 512, 64  # objects looked into, and entries of a container
_CLOSED = (type, FunctionType, ModuleType, torch.Tensor, torch.nn.Module, str, bytes, int, float)
_LIVE = {"_iterator"}  # a DataLoader's running workers

Generators = Mapping[str, Any]  # by path from the loader


def random_state() -> Tree:
    """All generators, those of GPUs by their place among this rank's: its own first.

    A generator of a GPU that another rank computes on is that rank's to keep.
    """
    tree: Tree = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tree["cuda"] = [torch.cuda.get_rng_state(gpu) for gpu in _own_gpus()]
    if "numpy" in sys.modules:
        tree["numpy"] = sys.modules["numpy"].random.get_state()
    return tree


def random_refusal(tree: Tree) -> str | None:
    """Why the generators cannot be put back; None if they can."""
    if "cuda" in tree and not torch.cuda.is_available():
        return "it holds the random numbers of a GPU, and there is none here"
    if "numpy" in tree and importlib.util.find_spec("numpy") is None:
        return "it holds the random numbers of numpy, which is not installed here"
    return None


def restore_random_state(tree: Tree) -> None:
    """Put the generators back. A restart may compute on fewer GPUs, or on others."""
    random.setstate(tree["python"])
    torch.set_rng_state(tree["torch"])
    if "cuda" in tree:
        for gpu, state in zip(_own_gpus(), tree["cuda"], strict=False):
            torch.cuda.set_rng_state(state, gpu)
    if "numpy" in tree:
        import numpy as np

        np.random.set_state(tree["numpy"])


def forget_gpus() -> None:
    """Look again which GPUs this process computes on: once the model is where it will train."""
    _own_gpus.cache_clear()


@cache
def _own_gpus() -> tuple[int, ...]:
    """The current one, then others that this process has memory on."""
    current = torch.cuda.current_device()
    others = (gpu for gpu in range(torch.cuda.device_count()) if gpu != current)
    return (current, *filter(torch.cuda.memory_allocated, others))


# ---- generators that objects hold ----------------------------------------------------------------


def generators_in(loader: Any) -> Generators:
    """The random generators that `loader` and what belongs to it hold."""
    found: dict[str, Any] = {}
    seen, waiting = {id(loader)}, deque([("", loader)])
    while waiting and len(seen) < MOST:
        path, owner = waiting.popleft()
        if _access(owner) is not None:
            found[path] = owner
            continue
        for name, value in _inside(owner):
            if id(value) not in seen and not isinstance(value, _CLOSED):
                seen.add(id(value))
                waiting.append((f"{path}.{name}", value))
    return found


def generators_of(values: Mapping[str, Any]) -> Generators:
    """Those of `values` that are generators."""
    return {name: value for name, value in values.items() if _access(value) is not None}


def states_of(generators: Generators) -> Tree:
    """Where each of them stands."""
    found = {path: (type(g).__name__, _access(g)) for path, g in generators.items()}
    return {p: {"kind": kind, "state": use[0]()} for p, (kind, use) in found.items() if use}


def put_back(generators: Generators, states: Tree) -> None:
    """Go on from `states`; one that is gone or of another kind is left as it is."""
    for path, kept in states.items():
        each = generators.get(path)
        access = _access(each)
        if access is not None and type(each).__name__ == kept["kind"]:
            access[1](kept["state"])


def _inside(owner: Any) -> Iterator[tuple[str, Any]]:
    entries: Any = getattr(owner, "__dict__", {}).items()
    if isinstance(owner, Mapping):
        entries = owner.items() if len(owner) <= FEW else ()
    elif isinstance(owner, list | tuple):
        entries = enumerate(owner) if len(owner) <= FEW else ()
    return ((str(name), value) for name, value in list(entries) if name not in _LIVE)


def _access(each: Any) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
    """How the state of a generator is read and set; None for what is none."""
    if isinstance(each, torch.Generator):
        return each.get_state, each.set_state
    if isinstance(each, random.Random):
        return None if isinstance(each, random.SystemRandom) else (each.getstate, each.setstate)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(each, numpy.random.RandomState):
        return each.get_state, each.set_state
    if numpy is not None and isinstance(each, numpy.random.Generator):
        bits = each.bit_generator
        return (lambda: bits.state), (lambda state: setattr(bits, "state", state))
    return None
