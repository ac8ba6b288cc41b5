"""Copies of the run's state in host memory, on CUDA without a host wait.

They are queued on the current stream: the next backward pass waits for the link, and nothing that
is queued later can get into a copy.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from spikeguard.ranks.model_parts import is_packed, local, taken_apart
from spikeguard.state.replicated_parts import Mark, is_plain, mapped


def host_copy(tree: Any, into: Any = None) -> Any:
    """A copy of `tree` on the host; uses `into` where tensors fit.

    From CUDA the copies are queued into pinned memory on the current stream, before anything
    that later changes the originals, so the host need not wait; wait for an event to read them.
    """
    if isinstance(tree, Tensor):
        if is_packed(tree):
            return host_copy(taken_apart(tree.detach()), into)
        return _tensor_to_host(local(tree).detach(), into)
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


def _tensor_to_host(tensor: Tensor, into: Any) -> Tensor:
    fits = isinstance(into, Tensor) and into.shape == tensor.shape and into.dtype == tensor.dtype
    if not fits:
        into = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    prepared: Tensor = into
    prepared.copy_(tensor, non_blocking=True)
    return prepared


def event_after_copy() -> torch.cuda.Event | None:
    """After what was queued so far; None where the process uses no CUDA."""
    if not torch.cuda.is_initialized():
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def tree_bytes(tree: Any) -> int:
    """Bytes of all tensors in `tree`."""
    sizes: list[int] = []

    def measure(value: Any, _: str) -> None:
        if isinstance(value, Tensor) and is_packed(value):
            mapped(taken_apart(value), measure)
        elif isinstance(value, Tensor):
            sizes.append(local(value).numel() * value.element_size())

    mapped(tree, measure)
    return sum(sizes)
