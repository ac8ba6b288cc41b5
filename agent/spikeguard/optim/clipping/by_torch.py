"""Clipping where the agent's own fails."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spikeguard.faults import Faults
from spikeguard.topology.model_parts import parameters


class ClipByTorch:
    """What torch makes of it.

    Where that fails too, or this rank holds a part of the model (its own norm is not the job's, and
    the others make no reduction for it), the gradients stay as they are, and the norm is NaN.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], parted: bool, faults: Faults) -> None:
        self.modules, self._parted, self._faults = modules, parted, faults

    def __call__(self, limit: float) -> Tensor:
        if not self._parted:
            with self._faults.shield("clip"):
                return torch.nn.utils.clip_grad_norm_(parameters(self.modules), limit)
        device = next((p.device for p in parameters(self.modules)), None)
        return torch.full((), math.nan, device=device)
