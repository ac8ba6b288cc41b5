"""The loss of the worst sequence of a step.

Law: a running maximum on the device, in which a NaN stays a NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spikeguard_protocol import OptionalSignal

WORST = OptionalSignal.LOSS_SEQUENCE_MAX.value


class WorstSequence:
    """The highest mean loss of a sequence since the last step."""

    def __init__(self) -> None:
        self._worst: Tensor | None = None

    @torch.no_grad()
    def show(self, losses: Tensor) -> None:
        """Note one micro-batch: nats, (B,) a sequence's mean each, or (B, ...) of its tokens."""
        if not losses.numel():
            return
        each = losses.detach().float()
        worst = (each if each.ndim < 2 else each.flatten(1).mean(1)).amax()
        self._worst = worst if self._worst is None else torch.maximum(self._worst, worst)

    def take(self) -> dict[str, Tensor]:
        """Nats, (); then start anew."""
        worst, self._worst = self._worst, None
        return {} if worst is None else {WORST: worst}
