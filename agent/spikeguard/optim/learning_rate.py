"""A learning rate lowered for some steps, in a way that no scheduler ever sees.

Multiplied in the step pre-hook and put back exactly in the post-hook: a change left in the group
would be kept for ever by CosineAnnealingLR and lost after one step by LambdaLR.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from spikeguard.optim.lr_scale import LrScale


def has_rates(optimizer: torch.optim.Optimizer) -> bool:
    """Whether every group has a rate that can be scaled; some optimizers keep None there."""
    return all(isinstance(g.get("lr"), Tensor | Real) for g in optimizer.param_groups)


def factor_of(scale: LrScale, step: int, rate: Tensor | Real | float) -> float | Tensor:
    """What multiplies every rate at `step`, where the first group's is `rate`, a number or a ()
    tensor; waits for no device."""
    factor = scale.at(step)
    if scale.cap is None or factor == 1.0:
        return factor
    if isinstance(rate, Tensor):
        return torch.clamp(scale.cap / rate, min=factor, max=1.0)
    return max(factor, min(1.0, scale.cap / float(rate))) if rate else 1.0


class ScaledRates:
    """The learning rates of every group of every optimizer, each during its own step."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = tuple(optimizers)
        self.lent: list[tuple[dict[str, Any], Any]] = []  # groups and what to put back
        self.scale: LrScale | None = None
        self.everywhere = True  # the other ranks' optimizers have rates too

    @property
    def usable(self) -> bool:
        """Whether a factor would change every group's rate; groups may be added while training."""
        return self.everywhere and all(map(has_rates, self._optimizers))

    def before_step(self, step: int, number: int = 0) -> list[Any]:
        """Scale those of one optimizer for `step`; returns what it will use, floats or () tensors.

        None stands for a group that has no rate, which nothing scales.
        """
        if self.lent:
            self.after_step()
        groups = self._optimizers[number].param_groups
        if self.scale is not None and self.scale.at(step) != 1.0 and self.usable:
            factor = factor_of(self.scale, step, self._optimizers[0].param_groups[0]["lr"])
            for group in groups:
                rate = group["lr"]
                self.lent.append((group, rate.clone() if isinstance(rate, Tensor) else rate))
                if isinstance(rate, Tensor):
                    rate.mul_(factor)
                else:
                    group["lr"] = rate * (float(factor) if isinstance(factor, Tensor) else factor)
        return [group.get("lr") for group in groups]

    def after_step(self) -> None:
        """Put the rates back, bit for bit."""
        while self.lent:
            group, rate = self.lent.pop()
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
