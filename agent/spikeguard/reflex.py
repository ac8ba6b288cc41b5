"""Keeps a non-finite update out of the weights, inside the step, without a sync.

Law: the decision is made on the device, from values that are equal on all ranks, and carried out
by the optimizer itself through the `found_inf` input that stock fused Adam and AdamW take: exactly
0 or 1, a scalar. Weights, moments and step counters of a dropped step stay bit-identical. Never
by multiplying with zero (0 * NaN is NaN). Where the optimizer cannot, it only reports.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_ABSENT: Final = object()


def can_drop(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` is a stock Adam or AdamW, fused in every group."""
    stock = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)
    return stock and all(group.get("fused") for group in optimizer.param_groups)


def non_finite(norm: Tensor, loss: Tensor | None) -> Tensor:
    """1.0 where the update must not happen, else 0.0: () fp32 on the norm's device."""
    finite = torch.isfinite(norm)
    if loss is not None:
        finite = finite & torch.isfinite(loss).to(norm.device, non_blocking=True)
    return finite.logical_not().to(torch.float32)


class Reflex:
    """Lends the optimizer a `found_inf` for one step and takes it back."""

    def __init__(self, optimizer: torch.optim.Optimizer, enabled: bool) -> None:
        self._optimizer: Any = optimizer
        self._enabled = enabled
        self._found: Any = _ABSENT
        self._lent = False

    @property
    def armed(self) -> bool:
        """Whether a non-finite update will be dropped; groups may change while training."""
        return self._enabled and can_drop(self._optimizer)

    def before_step(self, norm: Tensor, loss: Tensor | None) -> Tensor:
        """Judge the update; returns 1.0 where it is dropped (or, unarmed, 0.0)."""
        flag = non_finite(norm, loss)
        if not self.armed:
            return torch.zeros_like(flag)
        self._found = getattr(self._optimizer, "found_inf", _ABSENT)
        if isinstance(self._found, Tensor):  # a GradScaler is at work: either may drop
            flag = torch.maximum(flag, self._found.to(flag.device, flag.dtype).reshape(()))
        self._optimizer.found_inf = flag
        self._lent = True
        return flag

    def after_step(self) -> None:
        """Leave the attribute as it was found."""
        if not self._lent:
            return
        self._lent = False
        if self._found is _ABSENT:
            del self._optimizer.found_inf
        else:
            self._optimizer.found_inf = self._found
        self._found = _ABSENT


def loss_scale(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """The scale that the gradients still carry where a GradScaler left unscaling to the step."""
    scale = getattr(optimizer, "grad_scale", None)
    return scale if isinstance(scale, Tensor) else None
