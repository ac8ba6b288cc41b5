"""The loss of a step, put together from its micro-batches.

Law: on the device; the loop's own tensors are never kept. A loss that is a DTensor is told by this
rank's part of it, since a sum over the ranks here would make them meet in the loop: where it is
still to be added up (`Partial`), as many times the part as parts are added, so that the mean over
all ranks, which the step's vote makes, is the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


class LossMeter:
    """Weighted mean of a step's micro-batches, on the device."""

    def __init__(self, has_loss: bool = True) -> None:
        """`has_loss`: whether this rank computes one; what it shows otherwise is none."""
        self._has_loss = has_loss
        self._sum: Tensor | None = None
        self._weight: float | Tensor = 0.0

    def add(
        self,
        loss: Tensor | float,
        weight: float | Tensor | None,
        scale: float | Tensor | None = None,
    ) -> None:
        """Note one micro-batch's loss and its weight (tokens; 1 if none is given).

        `scale` makes it the mean of the micro-batch.
        """
        if not self._has_loss:
            return
        share = 1.0 if weight is None else weight
        if not isinstance(loss, Tensor):
            loss = torch.tensor(float(loss))
        elif loss.numel() != 1:
            raise ValueError(f"a loss of shape {tuple(loss.shape)}: give its mean, one number")
        if isinstance(loss, DTensor):
            loss = own_part(loss)
        if isinstance(share, Tensor):
            share = own_part(share).detach().to(torch.float32)
        part = loss.detach().to(torch.float32).reshape(()) * share  # a copy: the loss is the loop's
        if scale is not None:
            part = part * (own_part(scale).detach() if isinstance(scale, Tensor) else scale)
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


def own_part(value: Tensor) -> Tensor:
    """This rank's part of a () tensor, such that the mean over the ranks is all of it."""
    if not isinstance(value, DTensor):
        return value
    parts = 1
    for dimension, placement in enumerate(value.placements):
        if placement.is_shard():
            raise ValueError("the loss is a DTensor cut among ranks: give its mean")
        if isinstance(placement, Partial) and placement.reduce_op == "sum":
            parts *= value.device_mesh.size(dimension)
    return value.to_local() * parts if parts > 1 else value.to_local()
