"""Whether a fused SGD can drop at this step: it sets up its momentum before it looks at the flag.

A momentum that a dropped step sets up stays uninitialised, and the next step takes it in.
Law: parameters are gone through only where the answer can have changed: another group, another
state, a parameter's first gradient. Each other step costs the same for any number of them.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer

from spikeguard.topology.shards import is_sharded

_NONE: Final[dict[str, Any]] = {}


class Momenta:
    """What one SGD keeps of its parameters, as far as it is there."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups, self._sharded = 0, False
        self._seen: tuple[object, ...] = ()  # when last all were there
        self._without: list[Tensor] = []  # parameters that need one with their first gradient

    def complete(self) -> bool:
        """Whether all that this step takes are there, on parameters that are not sharded."""
        now = self._signs()
        if now != self._seen or any(p.grad is not None for p in self._without):
            self._seen, self._without = (), self._lacking()
            if self._in_shards() or any(p.grad is not None for p in self._without):
                return False
            self._seen = now
        return True

    def _signs(self) -> tuple[object, ...]:
        """Of another group or state; ids, since a reference would keep a replaced state alive."""
        state = self._optimizer.state
        first = next(iter(state.values()), _NONE).get("momentum_buffer")
        groups = [(bool(g["momentum"]), len(g["params"])) for g in self._optimizer.param_groups]
        return id(state), len(state), id(first), groups

    def _lacking(self) -> list[Tensor]:
        state = self._optimizer.state
        return [
            p
            for group in self._optimizer.param_groups
            if group["momentum"]
            for p in group["params"]
            if p not in state or state[p].get("momentum_buffer") is None
        ]

    def _in_shards(self) -> bool:
        groups = self._optimizer.param_groups
        if len(groups) != self._groups:
            self._groups = len(groups)
            self._sharded = any(is_sharded(group["params"]) for group in groups)
        return self._sharded
