"""Rules for clipping gradients: `attach(clip=...)` applies one inside the step.

A rule is a function of norms that are equal on all ranks and of its own state, so all ranks scale
alike. A norm that is not finite is left to the update_skipper: its gradients are not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from spikeguard.ranks.model_parts import onto


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
    ratio = left / norm.clamp_min(1e-30)  # 1 where the norm is zero or not finite
    ratio = torch.where(torch.isfinite(norm) & (norm > 0.0), ratio, torch.ones_like(ratio))
    hit = torch.maximum(told[ClipSignal.CLIPPED].float(), (more < 1.0).float())
    signals: dict[str, Tensor] = {
        **told,
        ClipSignal.NORM: left,
        ClipSignal.CLIPPED: hit,
        ClipSignal.FACTOR: ratio,
        ClipSignal.LIMIT: told[ClipSignal.LIMIT].clamp_max(max_norm),
    }
    return Clipped(clipped.factor * more, signals)


def factor_to(norm: Tensor, limit: Tensor) -> Tensor:
    """What brings `norm` down to `limit`; 1 where it is below, zero or not finite."""
    factor = (limit / norm.clamp_min(1e-12)).clamp_max(1.0)
    return torch.where(torch.isfinite(norm), factor, torch.ones_like(factor))


# ---- ZClip ----


_FIELDS = 7  # count, mean, variance, balance, outside, mean and squares of the outside logarithms
_FLOOR = 1e-3  # of the mean: a flat window has no spread, and everything would be outside


class ZClip:
    """Clip a gradient norm that stands out from those before it. Defaults as in the paper.

    Source: Kumar et al., ZClip, arXiv 2504.02507 (2025): figure 3 has what a z-score is brought to,
    tables 6 and 7 the defaults 2.5 and 0.97; held against the authors' published code
    (bluorion-com/ZClip). No equation is numbered here: of the text only parts were at hand.

        z_t = (g_t - mu_{t-1}) / sigma_{t-1}                          g_t: norm before clipping
        g*_t = mu_{t-1} + (z_thres^2 / z_t) sigma_{t-1}  where z_t > z_thres, else g_t
        mu_t = alpha mu_{t-1} + (1 - alpha) g*_t
        sigma_t^2 = alpha sigma_{t-1}^2 + (1 - alpha) (g*_t - mu_t)^2
        mu_0, sigma_0^2: mean and population variance of the warm-up's norms

    Gradients are scaled by min(g*_t, max_threshold) / g_t, while warming up by max_threshold alone.
    Beyond the paper, a norm that is not finite enters nothing, and a level that has moved for good
    is adopted: after `patience` more norms outside than inside, that of those outside.
    """

    def __init__(
        self,
        z_threshold: float = 2.5,
        decay: float = 0.97,
        *,
        max_threshold: float | None = 1.0,
        warm_up: int = 25,
        patience: int = 25,
    ) -> None:
        most = math.inf if max_threshold is None else max_threshold
        given = {"z_threshold": z_threshold, "decay": decay, "max_threshold": most}
        for name, value in {**given, "warm_up": warm_up, "patience": patience}.items():
            if not value > 0:
                raise ValueError(f"{name} is {value}. Give a number above 0")
        if decay >= 1.0:
            raise ValueError(f"decay is {decay}. Give a number between 0 and 1")
        self._threshold, self._decay, self._most = z_threshold, decay, most
        self._warm_up, self._patience = warm_up, patience
        self._state: Tensor | None = None  # (_FIELDS,) fp32

    def judge(self, norm: Tensor) -> Clipped:
        state = self._state_on(norm.device)
        count, mean, variance = state[0], state[1], state[2]
        finite, warm = torch.isfinite(norm), count >= self._warm_up
        seen = torch.where(finite, norm, mean)
        std = torch.maximum(variance.sqrt(), mean.abs() * _FLOOR).clamp_min(1e-12)
        z = torch.where(warm, (seen - mean) / std, 0.0)
        outside = warm & finite & (z > self._threshold)
        edge = torch.where(warm, mean + self._threshold * std, torch.inf)
        target = mean + self._threshold**2 / z.clamp_min(1e-6) * std
        limit = torch.where(outside, target, torch.inf)
        factor = factor_to(norm, limit.clamp_max(self._most))
        # what enters: the norm as the z-score made it, not as the fixed maximum cut it
        self._state = self._next(state, norm, torch.minimum(norm, limit), outside)
        signals: dict[str, Tensor] = {
            ClipSignal.NORM: norm * factor,
            ClipSignal.CLIPPED: (factor < 1.0).float(),
            ClipSignal.FACTOR: factor,
            ClipSignal.LIMIT: edge.clamp_max(self._most),
            ClipSignal.Z: z,
            ClipSignal.MEAN: mean,
            ClipSignal.STD: std,
        }
        return Clipped(factor, signals)

    def _next(self, state: Tensor, norm: Tensor, kept: Tensor, outside: Tensor) -> Tensor:
        """The state with `kept`, what was made of `norm`; not finite: nothing of it enters."""
        count, mean, variance, balance, met, log_mean, squares = state.unbind()
        finite, warming = torch.isfinite(norm), count < self._warm_up
        known = finite & torch.isfinite(kept)
        rate = torch.where(warming, 1.0 / (count + 1.0), 1.0 - self._decay)
        rate = torch.where(known, rate, 0.0)
        gap = torch.where(known, kept - mean, 0.0)
        mean = mean + rate * gap
        # equal weights while warming up; then the paper's (g - new mean)^2
        share = torch.where(warming, 1.0 - rate, (1.0 - rate).square())
        variance = (1.0 - rate) * variance + rate * share * gap.square()
        # where the norms outside have become the rule, their level and spread are taken over
        change = torch.where(outside, 1.0, torch.where(finite, -1.0, 0.0))
        balance, met = (balance + change).clamp_min(0.0), met + outside
        gap = torch.where(outside, norm.clamp_min(1e-30).log() - log_mean, 0.0)
        log_mean = log_mean + gap / met.clamp_min(1.0)
        squares = squares + gap * (gap - gap / met.clamp_min(1.0))
        moved, level = balance >= self._patience, log_mean.exp()
        spread = (level * (squares / met.clamp_min(1.0)).sqrt()).square()
        tail = torch.stack([balance, met, log_mean, squares]) * ((balance > 0.0) & ~moved)
        mean, variance = torch.where(moved, level, mean), torch.where(moved, spread, variance)
        return torch.cat([torch.stack([count + known, mean, variance]), tail])

    def _state_on(self, device: torch.device) -> Tensor:
        if self._state is None:
            return torch.zeros(_FIELDS, device=device)
        return self._state if self._state.device == device else onto(self._state, device)

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state["state"]


# ---- by name ----


# The fixed maximum of the paper's ZClip is the loop's own `max_norm` here.
BY_NAME: Mapping[str, Callable[[], Rule]] = {"zclip": lambda: ZClip(max_threshold=None)}


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
