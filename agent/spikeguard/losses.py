"""The loss of a step, put together from its micro-batches.

Law: on the device; the loop's own tensors are never kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOSS_SUM, LOSS_WEIGHT = "loss_sum", "loss_weight"  # on their way to a mean over all ranks


class LossMeter:
    """Weighted mean of a step's micro-batches, on the device."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._weight: float | Tensor = 0.0

    def add(self, loss: Tensor, weight: float | Tensor | None) -> None:
        """Note one micro-batch's mean loss and its weight (tokens; 1 if none is given)."""
        share = 1.0 if weight is None else weight
        if isinstance(share, Tensor):
            share = share.detach().to(torch.float32)
        part = loss.detach().to(torch.float32).reshape(()) * share  # a copy: the loss is the loop's
        self._sum = part if self._sum is None else self._sum + part
        self._weight = self._weight + share

    @property
    def mean(self) -> Tensor | None:
        """Weighted mean so far."""
        if self._sum is None or (isinstance(self._weight, float) and self._weight == 1.0):
            return self._sum
        return self._sum / self._weight

    def take(self) -> tuple[Tensor, float | Tensor] | None:
        """Sum and weight, then start anew; None if there was no loss."""
        taken = None if self._sum is None else (self._sum, self._weight)
        self._sum, self._weight = None, 0.0
        return taken
