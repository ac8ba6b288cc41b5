"""What a clipping rule is.

Law: a pure function of norms that are equal on all ranks and of the rule's own state, so all ranks
scale alike. A norm that is not finite is left to the update_skipper: its gradients are not scaled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor


class ClipSignal(StrEnum):
    """What a rule reports beside the standard signals, each for the step it judged."""

    NORM = "grad_norm_clipped"  # global L2 after clipping
    CLIPPED = "grad_clipped"  # 1.0 where it was clipped
    FACTOR = "clip_factor"  # clipped over raw global norm, 1.0 where nothing was scaled
    LIMIT = "clip_limit"  # the norm above which this step is clipped; not told where there is none
    Z = "grad_norm_z"  # standard deviations above the mean, before clipping
    MEAN = "grad_norm_mean"
    STD = "grad_norm_std"


@dataclass(frozen=True, slots=True)
class Clipped:
    """A rule's answer: what to multiply all gradients by, () fp32."""

    factor: Tensor
    signals: dict[str, Tensor] = field(default_factory=dict)


class Rule(Protocol):
    """Decides the factor of one step; called once a step, in order."""

    def judge(self, norm: Tensor, /) -> Clipped:
        """`norm`: global L2, () fp32."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def clipped_to(norm: float, max_norm: float) -> dict[str, float]:
    """What `torch.nn.utils.clip_grad_norm_` made of `norm`, told of the norm alone.

    Also where it is not finite: torch multiplies by 0 or NaN then.
    """
    factor = max_norm / norm if norm > max_norm else 1.0 if norm <= max_norm else math.nan
    return {
        ClipSignal.NORM.value: norm * factor,
        ClipSignal.CLIPPED.value: float(norm > max_norm),
        ClipSignal.FACTOR.value: factor,
        ClipSignal.LIMIT.value: float(max_norm),
    }


def under(clipped: Clipped, norm: Tensor, max_norm: float) -> Clipped:
    """`clipped`, with what it leaves of the global `norm` scaled down to `max_norm`."""
    told = clipped.signals
    more = factor_to(told[ClipSignal.NORM], torch.full_like(norm, max_norm))
    left = told[ClipSignal.NORM] * more
    hit = torch.maximum(told[ClipSignal.CLIPPED].float(), (more < 1.0).float())
    signals: dict[str, Tensor] = {
        **told,
        ClipSignal.NORM: left,
        ClipSignal.CLIPPED: hit,
        ClipSignal.FACTOR: scaled_by(norm, left),
        ClipSignal.LIMIT: told[ClipSignal.LIMIT].clamp_max(max_norm),
    }
    return Clipped(clipped.factor * more, signals)


def positive(name: str, value: float) -> float:
    """`value`; raise ValueError where it is not above zero."""
    if not value > 0.0:
        raise ValueError(f"{name} is {value}. Give a number above 0")
    return value


def within(name: str, value: float, low: float, high: float) -> float:
    """`value`; raise ValueError where it is not strictly between `low` and `high`."""
    if not low < value < high:
        raise ValueError(f"{name} is {value}. Give a number between {low} and {high}")
    return value


def factor_to(norm: Tensor, limit: Tensor) -> Tensor:
    """What brings `norm` down to `limit`; 1 where it is below, zero or not finite."""
    factor = (limit / norm.clamp_min(1e-12)).clamp_max(1.0)
    return torch.where(torch.isfinite(norm), factor, torch.ones_like(factor))


def scaled_by(norm: Tensor, clipped: Tensor) -> Tensor:
    """What the global norm was multiplied by; 1 where it is zero or not finite."""
    ratio = clipped / norm.clamp_min(1e-30)
    return torch.where(torch.isfinite(norm) & (norm > 0.0), ratio, torch.ones_like(ratio))
