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

from typing import Any

import torch
from torch import Tensor

from spikeguard.optim.clipping.baseline import Baseline
from spikeguard.optim.clipping.rules import (
    Clipped,
    ClipSignal,
    factor_to,
    positive,
    within,
)


class ZClip:
    """Global clipping by z-score. Defaults as in the paper."""

    per_parameter = False

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

    def judge(self, norm: Tensor, _each: Tensor | None = None) -> Clipped:
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
