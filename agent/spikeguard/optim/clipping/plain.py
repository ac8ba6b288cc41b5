"""A rule by its name, and clipping by one without a guard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from spikeguard.faults import Faults
from spikeguard.optim.clipping.rules import ClipSignal, Rule, under
from spikeguard.optim.clipping.zclip import ZClip
from spikeguard.ranks.model_parts import onto, parameters

# The fixed maximum of the paper's ZClip is the loop's own `max_norm` here.
BY_NAME: Mapping[str, Callable[[], Rule]] = {"zclip": lambda: ZClip(max_threshold=None)}


class ClipResult(NamedTuple):
    """What clipping made of one step; each () fp32 on the gradients' device."""

    norm: Tensor  # global L2 before clipping
    clipped_norm: Tensor  # after it
    clipped: Tensor  # 1.0 where it was clipped
    z: Tensor | None  # of `norm`, in standard deviations above the rule's mean; None: it has none
    limit: Tensor  # the norm above which the step is clipped; infinite where there is none yet


def rule_of(clip: str | Rule | None) -> Rule | None:
    """The rule of that name; raise ValueError or TypeError for what is none."""
    if clip is None:
        return None
    if isinstance(clip, str):
        if clip not in BY_NAME:
            raise ValueError(f"{clip!r} is no rule. Give one of {', '.join(BY_NAME)}, or an object")
        return BY_NAME[clip]()
    if not all(hasattr(clip, name) for name in ("judge", "state_dict", "load_state_dict")):
        kinds = f"{', '.join(BY_NAME)}, or an object of spikeguard.optim.clipping"
        raise TypeError(f"it is a {type(clip).__name__}. Give one of {kinds}")
    return clip


@torch.no_grad()
def clip_grad_norm_(
    parameters: Iterable[Tensor], rule: Rule, max_norm: float | None = None
) -> ClipResult:
    """Clip the gradients of `parameters` by `rule`, and to `max_norm` at most; waits for no device.

    Some may have no gradient. Sharded ones (DTensor) are measured over all ranks. Make the rule
    once, outside the loop; its `state_dict()` belongs into the job's checkpoints.
    """
    held = [p.grad for p in parameters if p.grad is not None]
    if not held:
        raise ValueError("no parameter has a gradient. Call it after the backward pass")
    norms = [_whole(norm).to(held[0].device).float() for norm in torch._foreach_norm(held)]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    clipped = rule.judge(norm)
    if max_norm is not None:
        clipped = under(clipped, norm, max_norm)
    for grad in held:
        own = grad.to_local() if isinstance(grad, DTensor) else grad
        own.mul_(onto(clipped.factor, own.device, own.dtype))
    told = clipped.signals
    return ClipResult(
        norm,
        told[ClipSignal.NORM],
        told[ClipSignal.CLIPPED],
        told.get(ClipSignal.Z),
        told[ClipSignal.LIMIT],
    )


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


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
