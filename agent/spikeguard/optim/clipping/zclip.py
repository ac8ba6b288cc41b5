"""ZClip: clip a gradient norm that stands out from those before it.

Source: Kumar et al., ZClip, arXiv 2504.02507 (2025): figure 3 has what a z-score is brought to,
tables 6 and 7 the defaults 2.5 and 0.97; held against the authors' published code
(bluorion-com/ZClip). No equation is numbered here: of the text only parts were at hand.

    z_t = (g_t - mu_{t-1}) / sigma_{t-1}                          g_t: global norm before clipping
    g*_t = mu_{t-1} + (z_thres^2 / z_t) sigma_{t-1}  where z_t > z_thres, else g_t
    mu_t = alpha mu_{t-1} + (1 - alpha) g*_t
    sigma_t^2 = alpha sigma_{t-1}^2 + (1 - alpha) (g*_t - mu_t)^2
    mu_0, sigma_0^2: mean and population variance of the warm-up's norms

Gradients are scaled by min(g*_t, max_threshold) / g_t, while warming up by max_threshold alone.
Law: beyond the paper, a norm that is not finite enters nothing, and a level that has moved for
good is adopted (`baseline`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikeguard.optim.clipping.rules import (
    Clipped,
    ClipSignal,
    factor_to,
    positive,
    within,
)
from spikeguard.ranks.model_parts import onto

_FIELDS = 7  # count, mean, variance, balance, outside, mean and squares of the outside logarithms
_FLOOR = 1e-3  # of the mean: a flat window has no spread, and everything would be outside


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one value stands against what came before it; all () fp32."""

    value: Tensor  # the mean where the value was not finite
    z: Tensor
    mean: Tensor
    std: Tensor
    outside: Tensor  # bool: beyond the threshold, and warm
    edge: Tensor  # the value beyond which it is outside; infinite while warming up


class Baseline:
    """An exponential average (`decay`); blind for `warm_up` values."""

    def __init__(self, threshold: float, decay: float, warm_up: int, patience: int) -> None:
        self._threshold, self._decay = threshold, decay
        self._warm_up, self._patience = warm_up, patience
        self._state: Tensor | None = None

    def judge(self, value: Tensor) -> Standing:
        """Compare `value`, () fp32, with the baseline; `learn` follows."""
        state = self._on(value)
        count, mean, variance = state[0], state[1], state[2]
        finite = torch.isfinite(value)
        seen = torch.where(finite, value, mean)
        std = torch.maximum(variance.sqrt(), mean.abs() * _FLOOR).clamp_min(1e-12)
        z = (seen - mean) / std
        warm = count >= self._warm_up
        outside = warm & finite & (z > self._threshold)
        edge = torch.where(warm, mean + self._threshold * std, torch.inf)
        return Standing(seen, torch.where(warm, z, torch.zeros_like(z)), mean, std, outside, edge)

    def learn(self, value: Tensor, standing: Standing, kept: Tensor) -> None:
        """Take in `kept`, what was made of `value`; `kept` not finite: nothing."""
        state = self._on(value)
        count, mean, variance = state[0], state[1], state[2]
        known = torch.isfinite(value) & torch.isfinite(kept)
        rate = torch.where(
            count < self._warm_up, 1.0 / (count + 1.0), torch.full_like(count, 1.0 - self._decay)
        )
        rate = torch.where(known, rate, torch.zeros_like(rate))
        gap = torch.where(known, kept - mean, torch.zeros_like(mean))
        new_mean = mean + rate * gap
        # equal weights while warming up; then the paper's (g - new mean)^2
        share = torch.where(count < self._warm_up, 1.0 - rate, (1.0 - rate).square())
        new_variance = (1.0 - rate) * variance + rate * share * gap.square()
        self._state = self._escaped(value, standing, count + known, new_mean, new_variance)

    def _escaped(
        self, value: Tensor, standing: Standing, count: Tensor, mean: Tensor, variance: Tensor
    ) -> Tensor:
        """The next state; that of the steps outside where they have become the rule."""
        assert self._state is not None
        balance, met, log_mean, squares = self._state[3:].unbind()
        out = standing.outside
        change = torch.where(out, 1.0, torch.where(torch.isfinite(value), -1.0, 0.0))
        balance = (balance + change).clamp_min(0.0)
        met = met + out
        gap = torch.where(out, standing.value.clamp_min(1e-30).log() - log_mean, 0.0)
        new_log = log_mean + gap / met.clamp_min(1.0)
        squares = squares + gap * (gap - gap / met.clamp_min(1.0))
        moved = balance >= self._patience
        level = new_log.exp()
        spread = (level * (squares / met.clamp_min(1.0)).sqrt()).square()
        stay = (balance > 0.0) & ~moved
        tail = torch.stack([balance, met, new_log, squares]) * stay
        mean, variance = torch.where(moved, level, mean), torch.where(moved, spread, variance)
        return torch.cat([torch.stack([count, mean, variance]), tail])

    def _on(self, value: Tensor) -> Tensor:
        if self._state is None:
            self._state = torch.zeros(_FIELDS, device=value.device)
        elif self._state.device != value.device:
            self._state = onto(self._state, value.device)
        return self._state

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state["state"]


class ZClip:
    """Global clipping by z-score. Defaults as in the paper."""

    def __init__(
        self,
        z_threshold: float = 2.5,
        decay: float = 0.97,
        *,
        max_threshold: float | None = 1.0,
        warm_up: int = 25,
        patience: int = 25,
    ) -> None:
        self._threshold = positive("z_threshold", z_threshold)
        top = float("inf") if max_threshold is None else max_threshold
        self._most = positive("max_threshold", top)
        positive("warm_up", warm_up)
        positive("patience", patience)
        within("decay", decay, 0.0, 1.0)
        self._baseline = Baseline(z_threshold, decay, warm_up, patience)

    def judge(self, norm: Tensor) -> Clipped:
        at = self._baseline.judge(norm)
        target = at.mean + self._threshold**2 / at.z.clamp_min(1e-6) * at.std
        limit = torch.where(at.outside, target, torch.full_like(target, torch.inf))
        factor = factor_to(norm, limit.clamp_max(self._most))
        # what enters: the norm as the z-score made it, not as the fixed maximum cut it
        self._baseline.learn(norm, at, torch.minimum(norm, limit))
        signals: dict[str, Tensor] = {
            ClipSignal.NORM: norm * factor,
            ClipSignal.CLIPPED: (factor < 1.0).float(),
            ClipSignal.FACTOR: factor,
            ClipSignal.LIMIT: at.edge.clamp_max(self._most),
            ClipSignal.Z: at.z,
            ClipSignal.MEAN: at.mean,
            ClipSignal.STD: at.std,
        }
        return Clipped(factor, signals)

    def state_dict(self) -> dict[str, Any]:
        return {"baseline": self._baseline.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._baseline.load_state_dict(state["baseline"])
