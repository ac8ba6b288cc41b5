"""Accelerate: the loop stays the user's, so everything a plain loop can do works here too.

guard = attach(accelerator, model, optimizer, run="name", scheduler=scheduler)
for batch in guard.batches(loader):
    with accelerator.accumulate(model):
        loss = guard.loss(model(**batch).loss)
        accelerator.backward(loss)
        guard.clip_grad_norm_(1.0)
        optimizer.step(); scheduler.step(); optimizer.zero_grad()
        guard.step()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor

import spikeguard
from spikeguard.integrations.framework_loop import attach_within, refuse_found

KNOWN = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP")


def attach(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    **arguments: Any,
) -> AcceleratedGuard:
    """`spikeguard.attach` for objects that went through `accelerator.prepare`."""
    accumulates = accelerator.gradient_accumulation_steps
    if accumulates > 1:  # else the loop may accumulate by hand, and say so
        refuse_found(arguments, "micro_batches")
    arguments.setdefault("micro_batches", accumulates)
    if accelerator.distributed_type not in [DistributedType[name] for name in KNOWN]:
        raise spikeguard.AttachError(
            "accelerator",
            f"{accelerator.distributed_type} steps its optimizer itself",
            f"Use one of {', '.join(KNOWN)}",
        )
    guard = attach_within(
        model,
        accelerator.unwrap_model(model, keep_torch_compile=False),
        [stock(each) for each in optimizer]
        if isinstance(optimizer, list | tuple)
        else stock(optimizer),
        accelerator.scaler,
        **arguments,
    )
    return AcceleratedGuard(accelerator, guard)


def stock(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer under Accelerate's: the one whose step hooks fire."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner


class AcceleratedGuard:
    """A guard that acts where gradients are synchronised and rests in between."""

    def __init__(self, accelerator: Accelerator, guard: spikeguard.Guard) -> None:
        self._accelerator = accelerator
        self.guard = guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self.guard, name)

    def clip_grad_norm_(self, max_norm: float | None) -> Tensor | None:
        """In place of `accelerator.clip_grad_norm_`: the norm before clipping, taken once."""
        if not self._accelerator.sync_gradients:
            return None
        self._accelerator.unscale_gradients()
        return self.guard.clip_grad_norm_(max_norm)

    def step(self) -> None:
        """Call it in every pass of the loop; it counts the real optimizer steps."""
        if self._accelerator.sync_gradients:
            self.guard.step()
