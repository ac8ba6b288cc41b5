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

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spikeguard.optim.optimizers import trained_by
from spikeguard.state.targets import Tree
from spikeguard.state.training_state import Later, event_after_copy, host_copy
from spikeguard.topology.packed import is_packed
from spikeguard.topology.shards import local


class HostCopies:
    """Makes them; `beside`: on a stream of its own where that is safe."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], beside: bool = False) -> None:
        self._optimizers, self._beside = tuple(optimizers), beside
        devices = [p.device for p in trained_by(optimizers) if p.is_cuda]
        self._device = devices[0] if devices else None
        self._stream: Any = None
        self._updated = [0] * len(optimizers)  # the newest step of which each one's hook was seen
        self._leaving: torch.cuda.Event | None = None
        self._sources: list[Tensor] = []  # kept alive while they are read

    @property
    def on_cuda(self) -> bool:
        """Whether copies come from a GPU that is there."""
        return self._device is not None and torch.cuda.is_available()

    def take(self, live: Tree, into: Any, step: int) -> tuple[Any, torch.cuda.Event | None]:
        """A copy of `live` as of the boundary after `step`, and the event that completes it."""
        self.before_change()  # of a copy on the way: its buffers may be those of `into`
        later = Later(self._own()) if self._beside and self._seen(step) else None
        tree = host_copy(live, into, later)
        if later is None or not later.pairs:
            return tree, event_after_copy(live)
        return tree, self._queued(later.pairs)

    def _seen(self, step: int) -> bool:
        return all(updated == step for updated in self._updated)

    def before_update(self, step: int, number: int = 0) -> None:
        """In an optimizer's pre-hook of `step`: its work on the device comes after the copy."""
        self._updated[number] = step
        if self._leaving is not None:
            self.before_change()

    def before_change(self) -> None:
        """Whatever is queued on the current stream from here on may change the state."""
        if self._leaving is not None:
            torch.cuda.current_stream(self._device).wait_event(self._leaving)
            self._leaving, self._sources = None, []

    def _own(self) -> set[int]:
        """Storages that nobody but the optimizers write to."""
        kept = [state for each in self._optimizers for state in each.state.values()]
        states = [value for state in kept for value in state.values()]
        tensors = [
            t
            for t in (*trained_by(self._optimizers), *states)
            if isinstance(t, Tensor) and not is_packed(t)
        ]
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
