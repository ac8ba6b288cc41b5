"""What the loop holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from torch import Tensor

Batch = TypeVar("Batch")


class Guard:
    """The public face inside the loop."""

    steps: int  # optimizer steps completed
    position: int  # next position in the data order
    stopped: bool  # a stop was ordered: batches() ends at the next step boundary

    def resume(self) -> int:
        """Restore the newest checkpoint that is not abandoned; returns its step, 0 if none."""
        raise NotImplementedError

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield micro-batches; honours skips and rollbacks."""
        raise NotImplementedError

    def loss(self, loss: Tensor, weight: float | Tensor | None = None) -> Tensor:
        """Note the loss of one micro-batch (mean per token, nats); returns the same tensor."""
        raise NotImplementedError

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip like `torch.nn.utils.clip_grad_norm_`; returns the norm before clipping."""
        raise NotImplementedError

    def step(self) -> None:
        """Call once after each optimizer step."""
        raise NotImplementedError

    def checkpoint(self) -> str | None:
        """Save a checkpoint now, at a step boundary; returns its name."""
        raise NotImplementedError

    def finish(self, reason: str = "finished") -> None:
        """Say that the attempt ended, send what can be sent in a few seconds, undo the hooks."""
        raise NotImplementedError
