"""Copies of the run's state in host memory, on CUDA without a host wait.

On the current stream, by default: the next backward pass waits for the link, and nothing that is
queued later can get into a copy. Beside it, where asked for: what the optimizer trains and keeps,
nearly all bytes of a state, leaves on a stream of its own while the next passes run, and the
optimizer's next update waits for it on the device.
Law: what is copied beside the loop is written to by the watched optimizer alone, and only where its
hook was seen in the step before, as in the replay of a captured graph it is not. Everything else
(buffers, an EMA, a scaler) may change at once and leaves on the current stream.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spikeguard.shards import local
from spikeguard.targets import Tree
from spikeguard.training_state import Later, event_after_copy, host_copy


class HostCopies:
    """Makes them; `beside`: on a stream of its own where that is safe."""

    def __init__(self, optimizer: torch.optim.Optimizer, beside: bool = False) -> None:
        self._optimizer, self._beside = optimizer, beside
        devices = [p.device for g in optimizer.param_groups for p in g["params"] if p.is_cuda]
        self._device = devices[0] if devices else None
        self._stream: Any = None
        self._updated = 0  # the newest step of which the optimizer's hook was seen
        self._leaving: torch.cuda.Event | None = None
        self._sources: list[Tensor] = []  # kept alive while they are read

    def take(self, live: Tree, into: Any, step: int) -> tuple[Any, torch.cuda.Event | None]:
        """A copy of `live` as of the boundary after `step`, and the event that completes it."""
        self.before_change()  # of a copy on the way: its buffers may be those of `into`
        later = Later(self._own()) if self._beside and self._updated == step else None
        tree = host_copy(live, into, later)
        if later is None or not later.pairs:
            return tree, event_after_copy(live)
        return tree, self._queued(later.pairs)

    def before_update(self, step: int) -> None:
        """In the optimizer's pre-hook of `step`: its work on the device comes after the copy."""
        self._updated = step
        self.before_change()

    def before_change(self) -> None:
        """Whatever is queued on the current stream from here on may change the state."""
        if self._leaving is not None:
            torch.cuda.current_stream(self._device).wait_event(self._leaving)
            self._leaving, self._sources = None, []

    def _own(self) -> set[int]:
        """Storages that nobody but the optimizer writes to."""
        trained = [p for group in self._optimizer.param_groups for p in group["params"]]
        states = [v for kept in self._optimizer.state.values() for v in kept.values()]
        tensors = [t for t in (*trained, *states) if isinstance(t, Tensor)]
        return {local(t).untyped_storage()._cdata for t in tensors if t.device == self._device}

    def _queued(self, pairs: list[tuple[Tensor, Tensor]]) -> torch.cuda.Event:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for source, into in pairs:
                into.copy_(source, non_blocking=True)
            left = torch.cuda.Event()
            left.record(self._stream)
        self._leaving, self._sources = left, [source for source, _ in pairs]
        return left
