"""Everything that must go back in a rollback: model, optimizer, scheduler, state, random numbers.

Law: captured at a step boundary only, restored in place, bit for bit: parameters, moments and
tensor learning rates keep their identity, so compiled steps, captured graphs and schedulers stay
valid. Sharded tensors are kept as this rank's shard. Cost: all bytes once over the host link
(25 M parameters with Adam: 300 MB); from CUDA into pinned memory without a host wait.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from spikeguard.model_parts import unwrapped
from spikeguard.shards import local
from spikeguard.targets import Tree, shape_mismatch
from spikeguard.topology import Topology

_PLAIN = {int, float, str, bool, type(None)}


class TrainingState:
    """The live objects."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        extra: Sequence[Any],
        topology: Topology,
        saves_optimizer: bool = True,
    ) -> None:
        """`saves_optimizer`: False where the job's own functions save it."""
        self._saves_optimizer = saves_optimizer
        self._model = unwrapped(model)
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._extra = tuple(extra)
        self.learnt: Any = None  # with state_dict: what the agent itself has learnt
        self._named = {
            f"model.{n}" for n, _ in self._model.named_parameters(remove_duplicate=False)
        }
        self._topology = topology

    def capture(self) -> Tree:
        """References to the live state; copy before the next step changes it."""
        return {
            "model": dict(self._model.state_dict()),
            "optimizer": self._optimizer.state_dict() if self._saves_optimizer else None,
            "scheduler": self._scheduler.state_dict() if self._scheduler is not None else None,
            "extra": [item.state_dict() for item in self._extra],
            "random": random_state(),
            "learnt": self.learnt.state_dict() if self.learnt is not None else None,
        }

    @property
    def stage(self) -> str:
        """What the names of shared tensors begin with: stages may name theirs alike."""
        return f"stage{self._topology.stage}." if self._topology.stages > 1 else ""

    def shared(self, name: str, tensor: Tensor) -> bool:
        """Whether ranks hold the tensor `name` of `capture()` together: in parts, or alike."""
        if isinstance(tensor, DTensor):
            return not self._topology.groups  # those that are cut beyond their mesh have one name
        moments = name.startswith("optimizer.state.") and _is_stock(self._optimizer)
        return self._topology.alike and (moments or name in self._named)

    def refusal(self, tree: Tree) -> str | None:
        """Why `tree` cannot be restored here; None if it can. Changes nothing."""
        if len(tree["extra"]) != len(self._extra):
            return f"it holds {len(tree['extra'])} entries of state=, the loop {len(self._extra)}"
        if "model" not in tree:  # the job's own functions bring it back
            return None
        groups = tree["optimizer"]["param_groups"]
        if len(groups) != len(self._optimizer.param_groups):
            return "the optimizer has another number of parameter groups"
        live = {name: _local(t) for name, t in self._model.state_dict().items()}
        return shape_mismatch(tree["model"], live)

    @torch.no_grad()
    def restore(self, tree: Tree) -> None:
        """Put everything back that `tree` holds; half done if it raises."""
        if "model" in tree:
            self._restore_model(tree["model"])
            restore_optimizer(self._optimizer, tree["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(copy.deepcopy(tree["scheduler"]))
        for item, saved in zip(self._extra, tree["extra"], strict=True):
            item.load_state_dict(copy.deepcopy(saved))
        if self.learnt is not None and tree.get("learnt") is not None:
            self.learnt.load_state_dict(copy.deepcopy(tree["learnt"]))
        self._optimizer.zero_grad(set_to_none=True)
        restore_random_state(tree["random"])

    def _restore_model(self, saved: Tree) -> None:
        live = self._model.state_dict()
        if not all(isinstance(value, Tensor) for value in live.values()):
            self._model.load_state_dict(copy.deepcopy(saved))
            return
        for name, tensor in live.items():
            local(tensor).copy_(saved[name])


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: Tree) -> None:
    """Put a stock optimizer's state back in place; others through their own load_state_dict."""
    if not _is_stock(optimizer):
        optimizer.load_state_dict(copy.deepcopy(saved))
        return
    for group, kept in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for number, parameter in zip(kept["params"], group["params"], strict=True):
            _restore_entry(optimizer, parameter, saved["state"].get(number))
        for key, value in kept.items():
            if key != "params":
                group[key] = _in_place(group.get(key), value)


def _is_stock(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict


def _restore_entry(
    optimizer: torch.optim.Optimizer, parameter: Tensor, kept: dict[str, Any] | None
) -> None:
    if kept is None:
        optimizer.state.pop(parameter, None)
        return
    live = optimizer.state[parameter]
    for key in [key for key in live if key not in kept]:
        del live[key]
    for key, value in kept.items():
        live[key] = _in_place(live.get(key), value, _like(parameter, value, optimizer))


def _like(parameter: Tensor, value: Any, optimizer: torch.optim.Optimizer) -> Tensor | None:
    """What a state tensor that does not exist yet is made after."""
    if not isinstance(value, Tensor):
        return None
    if value.shape == local(parameter).shape:
        return torch.empty_like(parameter, dtype=value.dtype)
    fused = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    return torch.empty_like(value, device=parameter.device if fused else "cpu")


def _in_place(live: Any, kept: Any, new: Tensor | None = None) -> Any:
    if not isinstance(kept, Tensor):
        return copy.deepcopy(kept)
    same = isinstance(live, Tensor) and local(live).shape == kept.shape and live.dtype == kept.dtype
    home = live if same else (new if new is not None else torch.empty_like(kept))
    local(home).copy_(kept)
    return home


def random_state() -> Tree:
    """The generators of python, torch, CUDA and, where it is loaded, numpy."""
    tree: Tree = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tree["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        tree["numpy"] = sys.modules["numpy"].random.get_state()
    return tree


def restore_random_state(tree: Tree) -> None:
    """Put the generators back."""
    random.setstate(_tuples(tree["python"]))
    torch.set_rng_state(tree["torch"])
    if "cuda" in tree:
        torch.cuda.set_rng_state_all(tree["cuda"])
    if "numpy" in tree:
        import numpy as np

        np.random.set_state(tree["numpy"])


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


class Later:
    """Tensors whose copy is only prepared, since they lie in one of `storages`."""

    def __init__(self, storages: set[int]) -> None:
        self._storages = storages
        self.pairs: list[tuple[Tensor, Tensor]] = []  # from where, into what

    def takes(self, tensor: Tensor, into: Tensor) -> bool:
        """Whether somebody else will copy `tensor` into `into`."""
        if tensor.untyped_storage()._cdata not in self._storages:
            return False
        self.pairs.append((tensor, into))
        return True


def host_copy(tree: Any, into: Any = None, later: Later | None = None) -> Any:
    """A copy of `tree` on the host, but for what `later` takes; uses `into` where tensors fit.

    From CUDA the copies are queued into pinned memory on the current stream, before anything
    that later changes the originals, so the host need not wait; wait for an event to read them.
    """
    if isinstance(tree, Tensor):
        return _tensor_to_host(local(tree).detach(), into, later)
    if isinstance(tree, dict):
        old = into if isinstance(into, dict) else {}
        return {key: host_copy(value, old.get(key), later) for key, value in tree.items()}
    if _is_plain(tree):
        return tree
    if isinstance(tree, list | tuple) and type(tree) in (list, tuple):
        olds = (
            into
            if isinstance(into, list | tuple) and len(into) == len(tree)
            else [None] * len(tree)
        )
        return type(tree)(host_copy(v, o, later) for v, o in zip(tree, olds, strict=True))
    return copy.deepcopy(tree)


def _tensor_to_host(tensor: Tensor, into: Any, later: Later | None) -> Tensor:
    fits = isinstance(into, Tensor) and into.shape == tensor.shape and into.dtype == tensor.dtype
    if not fits:
        into = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    prepared: Tensor = into
    if later is None or not later.takes(tensor, prepared):
        prepared.copy_(tensor, non_blocking=True)
    return prepared


def event_after_copy(tree: Any) -> torch.cuda.Event | None:
    """After what was queued so far, where `tree` holds a CUDA tensor; None where it holds none."""
    if not _on_cuda(tree):
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def _on_cuda(tree: Any) -> bool:
    if isinstance(tree, Tensor):
        return tree.is_cuda
    return any(map(_on_cuda, _items(tree)))


def tree_bytes(tree: Any) -> int:
    """Bytes of all tensors in `tree`."""
    if isinstance(tree, Tensor):
        return local(tree).numel() * tree.element_size()
    return sum(map(tree_bytes, _items(tree)))


def _items(tree: Any) -> Collection[Any]:
    """What may hold a tensor in it."""
    if isinstance(tree, dict):
        return tree.values()
    return tree if type(tree) in (list, tuple) and not _is_plain(tree) else ()


def _is_plain(tree: Any) -> bool:
    """Whether it is a tuple of constants, as the 625 of Python's generator: one piece."""
    return type(tree) is tuple and set(map(type, tree)) <= _PLAIN


def _local(value: Any) -> Any:
    return local(value) if isinstance(value, Tensor) else value
