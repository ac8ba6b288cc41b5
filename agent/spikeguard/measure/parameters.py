"""Which parameters a step is judged by: the model's, and whatever else the optimizer trains.

Law: one that takes no gradient now may take one later (a layer is unfrozen, a group is added), and
then its gradient is measured, clipped and judged like any other. So all of them are listed, and
whoever reads gradients passes over those that have none. The list only grows: what is kept by row
stays in its row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spikeguard.optim.optimizers import names_of
from spikeguard.topology.model_parts import Modules, named_parameters


class Parameters:
    """Names and tensors, row by row."""

    def __init__(self, modules: Modules, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._modules, self._optimizers = modules, tuple(optimizers)
        self.names: list[str] = []
        self.tensors: list[Tensor] = []
        self._known: set[int] = set()
        self._groups = 0
        self.grow()

    @property
    def outdated(self) -> bool:
        """Whether an optimizer was given a group since `grow` was called."""
        return self._count() != self._groups

    def grow(self) -> None:
        """Add what was not there before: first the model's, then the optimizers' own."""
        self._groups = self._count()
        for name, parameter in named_parameters(self._modules):
            self._add(name, parameter)
        names = names_of(self._optimizers) if len(self._optimizers) > 1 else ("optimizer",)
        for optimizer, name in zip(self._optimizers, names, strict=True):
            for number, group in enumerate(optimizer.param_groups):
                for place, parameter in enumerate(group["params"]):
                    self._add(f"{name}.{number}.{place}", parameter)

    def _count(self) -> int:
        count = 0
        for optimizer in self._optimizers:
            count += len(optimizer.param_groups)
        return count

    def _add(self, name: str, parameter: Tensor) -> None:
        if id(parameter) not in self._known:
            self._known.add(id(parameter))
            self.names.append(name)
            self.tensors.append(parameter)

    @property
    def trained(self) -> list[Tensor]:
        """Those that take a gradient now."""
        return [p for p in self.tensors if p.requires_grad]


def begins_with(names: Sequence[str], rows: str | None) -> bool:
    """Whether `rows` that were kept are the first of `names`; others were of other parameters."""
    kept = [] if rows is None else rows.split("\n")
    return bool(kept) and list(names[: len(kept)]) == kept
