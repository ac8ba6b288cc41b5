"""What a pass over a loader begins with, so that it can be begun once more in the same order.

The job's global random numbers, the generators that loader, samplers and dataset hold (torch,
numpy, python), the epoch that samplers were set to, and whether workers were running already: the
first `iter()` of a DataLoader with `persistent_workers` draws a number that later ones do not.
Generators are looked for in attributes, at most `MOST` objects; one in a worker process, a closure
or a global is not found.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch

from spikeguard.faults import log
from spikeguard.state.random_numbers import random_state, restore_random_state
from spikeguard.state.targets import Tree

MOST, FEW = 512, 64  # objects looked into, and entries of a container
_CLOSED = (type, FunctionType, ModuleType, torch.Tensor, torch.nn.Module, str, bytes, int, float)
_LIVE = {"_iterator"}  # a DataLoader's running workers

Generators = Mapping[str, Any]  # by path from the loader


def generators_in(loader: Any) -> Generators:
    """The random generators that `loader` and what belongs to it hold."""
    found: dict[str, Any] = {}
    seen, waiting = {id(loader)}, deque([("", loader)])
    while waiting and len(seen) < MOST:
        path, owner = waiting.popleft()
        if _kind_of(owner) is not None:
            found[path] = owner
            continue
        for name, value in _inside(owner):
            if id(value) not in seen and not isinstance(value, _CLOSED):
                seen.add(id(value))
                waiting.append((f"{path}.{name}", value))
    return found


def states_of(generators: Generators) -> Tree:
    """Where each of them stands."""
    return {path: _state(each) for path, each in generators.items()}


def put_back(generators: Generators, states: Tree) -> None:
    """Go on from `states`; one that is gone or of another kind is left as it is."""
    for path, kept in states.items():
        each = generators.get(path)
        if each is None or _kind_of(each) != kept["kind"]:
            continue
        if kept["kind"] == "numpy":
            each.bit_generator.state = kept["state"]
        elif kept["kind"] == "python":
            each.setstate(kept["state"])
        else:
            each.set_state(kept["state"])


def capture(loader: Any, generators: Generators) -> Tree:
    """What a pass that begins now begins with."""
    return {
        "random": random_state(),
        "generators": states_of(generators),
        "epochs": epochs_of(loader),
        "running": getattr(loader, "_iterator", None) is not None and keeps_workers(loader),
    }


def restore(loader: Any, generators: Generators, start: Tree) -> None:
    """Have the next `iter(loader)` begin the pass that began with `start`."""
    set_epochs(loader, start.get("epochs", {}))
    if keeps_workers(loader):
        running = getattr(loader, "_iterator", None) is not None
        if running and not start["running"]:
            loader._iterator = None  # ends the workers: the next begin as the first did
        elif start["running"] and not running:
            iter(loader)
    put_back(generators, start.get("generators", {}))
    restore_random_state(start["random"])


def epochs_of(loader: Any) -> dict[str, int]:
    """What those of its parts that have `set_epoch` are set to, where they say so."""
    epochs = {role: getattr(each, "epoch", None) for role, each in _told_epochs(loader)}
    return {role: epoch for role, epoch in epochs.items() if type(epoch) is int}


def set_epochs(loader: Any, epochs: Mapping[str, int]) -> None:
    """The same parts, back to what they were set to."""
    for role, each in _told_epochs(loader):
        if role in epochs and getattr(each, "epoch", None) != epochs[role]:
            each.set_epoch(epochs[role])


def tell_silent(loader: Any, epoch: int) -> None:
    """Set those that do not say what they are set to."""
    said = epochs_of(loader)
    for role, each in _told_epochs(loader):
        if role not in said:
            each.set_epoch(epoch)


def tell_epoch(loader: Any, epoch: int, but: Mapping[str, int] | None = None) -> None:
    """Set all of them to `epoch`; not those that the loop has set itself since they were `but`."""
    now = epochs_of(loader)
    for role, each in _told_epochs(loader):
        if but is None or role not in now or now[role] == but.get(role, 0):
            each.set_epoch(epoch)


def is_earlier(loader: Any, saved: Mapping[str, int]) -> bool:
    """Whether the loop has set a part of it to an epoch before the `saved` one; says so."""
    now = epochs_of(loader)
    early = [role for role in now if now[role] < saved.get(role, 0)]
    if early:
        log.warning(
            "epoch %d was trained before the restart, and the run goes on in epoch %d: "
            "guard.batches() has nothing to give in it. Write `for epoch in guard.epochs(E)`, so "
            "that the loop does nothing else in it either",
            now[early[0]],
            saved[early[0]],
        )
    return bool(early)


def _told_epochs(loader: Any) -> Iterator[tuple[str, Any]]:
    batches = getattr(loader, "batch_sampler", None)
    parts = {
        "loader": loader,
        "sampler": getattr(loader, "sampler", None),
        "batch_sampler": batches,
        "batch_sampler.sampler": getattr(batches, "sampler", None),
        "dataset": getattr(loader, "dataset", None),
    }
    seen = set[int]()
    for role, each in parts.items():
        if callable(getattr(each, "set_epoch", None)) and id(each) not in seen:
            seen.add(id(each))
            yield role, each


def keeps_workers(loader: Any) -> bool:
    """Whether a second `iter(loader)` takes the workers of the first."""
    return getattr(loader, "persistent_workers", False) is True


def _inside(owner: Any) -> Iterator[tuple[str, Any]]:
    entries: Any = getattr(owner, "__dict__", {}).items()
    if isinstance(owner, Mapping):
        entries = owner.items() if len(owner) <= FEW else ()
    elif isinstance(owner, list | tuple):
        entries = enumerate(owner) if len(owner) <= FEW else ()
    return ((str(name), value) for name, value in list(entries) if name not in _LIVE)


def _kind_of(each: Any) -> str | None:
    if isinstance(each, torch.Generator):
        return "torch"
    if isinstance(each, random.Random):
        return None if isinstance(each, random.SystemRandom) else "python"
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(each, numpy.random.Generator):
        return "numpy"
    return "legacy" if numpy is not None and isinstance(each, numpy.random.RandomState) else None


def _state(each: Any) -> Tree:
    kind = _kind_of(each)
    if kind == "numpy":
        return {"kind": kind, "state": each.bit_generator.state}
    return {"kind": kind, "state": each.getstate() if kind == "python" else each.get_state()}
