"""AdaGC: clip each parameter's gradient against the average of its own clipped norms.

Source: Wang et al., AdaGC, arXiv 2502.11034 (2025; ICML 2026). h and gamma as in the method section
of the authors' repository (PaddlePaddle/PaddleFleet, Research/AdaGC), the warm-up as a description
of the paper has it. Without the paper's numbers: of its text only the beginning was at hand.

    h_i = min(lambda_rel gamma_{t-1,i} / |g_{t,i}|, 1)            i: one parameter
    h_i = min(lambda_abs / |g_t|, 1)                              while warming up, global norm
    gamma_{t,i} = beta gamma_{t-1,i} + (1 - beta) |h_i g_{t,i}|

The paper starts each gamma at the least norm of the warm-up; here it is the exponential average
from the first step on, divided by 1 - beta^t (Adam's correction of its start), so that one small
norm of the warm-up does not rule what follows. `relative` is lambda_rel, `warm_up_norm` lambda_abs.
Law: statistics of all parameters are one vector, so a step costs the same few operations for any
number of them. A norm that is not finite enters no average, nor does one of exactly 0: a parameter
without a gradient. One that gets its first gradient late warms up then, on its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spikeguard.optim.clipping.rules import (
    Clipped,
    ClipSignal,
    factor_to,
    positive,
    scaled_by,
    within,
)
from spikeguard.ranks.model_parts import onto

_FAR = 1.5  # times the limit: so far outside for `patience` steps, a level has moved


class AdaGC:
    """Per-parameter clipping; `beta` 0.98 or 0.99 as in the paper."""

    per_parameter = True

    def __init__(
        self,
        relative: float = 1.05,
        beta: float = 0.98,
        *,
        warm_up: int = 100,
        warm_up_norm: float = 1.0,
        patience: int = 50,
    ) -> None:
        self._relative = positive("relative", relative)
        self._beta = within("beta", beta, 0.0, 1.0)
        self._warm_up, self._patience = positive("warm_up", warm_up), positive("patience", patience)
        self._first = positive("warm_up_norm", warm_up_norm)
        self._state: Tensor | None = None  # (4, n): average, count, balance, log of the outside

    def judge(self, norm: Tensor, each: Tensor | None) -> Clipped:
        if each is None:
            raise ValueError("each is None. AdaGC needs every parameter's norm")
        average, count, balance, logs = self._on(each).unbind()
        usual = average / (1.0 - self._beta**count).clamp_min(1e-12)
        limit = self._relative * usual
        warm = count >= self._warm_up
        factor = torch.where(
            warm, factor_to(each, limit), factor_to(norm, torch.full_like(norm, self._first))
        )
        there = each != 0.0
        factor = torch.where(there, factor, torch.ones_like(factor))
        finite = torch.isfinite(each) & there
        known = finite & torch.isfinite(factor * each)
        kept = torch.where(known, factor * each, torch.zeros_like(each))
        average = torch.where(known, self._beta * average + (1.0 - self._beta) * kept, average)
        count = count + known
        far = warm & finite & (each > _FAR * limit)
        balance = (balance + torch.where(far, 1.0, torch.where(finite, -1.0, 0.0))).clamp_min(0.0)
        seen = torch.where(far, each.clamp_min(1e-30).log(), torch.zeros_like(each))
        logs = torch.where(far, logs + (seen - logs) / balance.clamp_min(1.0), logs)
        moved = balance >= self._patience
        average = torch.where(moved, logs.exp() * (1.0 - self._beta**count), average)
        balance = torch.where(moved, torch.zeros_like(balance), balance)
        logs = torch.where(balance > 0.0, logs, torch.zeros_like(logs))
        self._state = torch.stack([average, count, balance, logs])
        share = (factor < 1.0).sum() / there.sum().clamp_min(1)
        left = torch.linalg.vector_norm(each * factor)
        signals: dict[str, Tensor] = {
            ClipSignal.NORM: left,
            ClipSignal.CLIPPED: share,
            ClipSignal.FACTOR: scaled_by(norm, left),
            ClipSignal.LIMIT: self._most_left(warm, limit, norm),
        }
        return Clipped(factor, signals)

    def _most_left(self, warm: Tensor, limit: Tensor, norm: Tensor) -> Tensor:
        """The largest global norm that can be left, () fp32; none while one parameter warms up on
        its own."""
        first = torch.full_like(norm, self._first)
        together = torch.linalg.vector_norm(torch.where(warm, limit, torch.inf))
        return torch.where(warm.any(), together, first)

    def _on(self, each: Tensor) -> Tensor:
        rows = 0 if self._state is None else self._state.shape[1]
        if self._state is None or rows > len(each):
            self._state = torch.zeros(4, len(each), device=each.device)
        elif rows < len(each):  # parameters were added: theirs are the last
            self._state = torch.nn.functional.pad(self._state, (0, len(each) - rows))
        return onto(self._state, each.device)

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state["state"]
