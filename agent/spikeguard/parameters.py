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


class Parameters:
    """Names and tensors, row by row."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self.names: list[str] = []
        self.tensors: list[Tensor] = []
        self._known: set[int] = set()
        self._groups = 0
        self.grow()

    @property
    def outdated(self) -> bool:
        """Whether the optimizer was given a group since `grow` was called."""
        return len(self._optimizer.param_groups) != self._groups

    def grow(self) -> None:
        """Add what was not there before: first the model's, then the optimizer's own."""
        self._groups = len(self._optimizer.param_groups)
        for name, parameter in self._model.named_parameters():
            self._add(name, parameter)
        for number, group in enumerate(self._optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                self._add(f"optimizer.{number}.{place}", parameter)

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
