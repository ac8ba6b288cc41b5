"""Keeps a non-finite or, if asked, an extreme update out of the weights, without a sync.

Law: the decision is made on the device, from values that are equal on all ranks, and carried out
by the optimizer itself through the `found_inf` input that stock fused Adam, AdamW and SGD take (the
last from its second step on): exactly 0 or 1, a scalar. Weights, moments and step counters of a
dropped step stay bit-identical. Never by multiplying with zero (0 * NaN is NaN). Where the
optimizer cannot, it only reports, unless the user pays for a sync: then the host reads the decision
in each step, and an update that must not happen is not entered (`optimizer_step`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from spikeguard.clipping.baseline import Baseline
from spikeguard.momentum import Momenta
from spikeguard.shards import is_sharded

_ABSENT: Final = object()
_DECAY = 0.99  # of the baselines: about the last 100 steps


def can_drop(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` is a stock Adam, AdamW or SGD, fused in every group; SGD not sharded."""
    if type(optimizer) is torch.optim.SGD:
        sharded = any(is_sharded(group["params"]) for group in optimizer.param_groups)
        return _fused(optimizer) and not sharded
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and _fused(optimizer)


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    return all(group.get("fused") for group in optimizer.param_groups)


def can_skip_by_sync(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of `optimizer` is one update; L-BFGS makes several, judged at the first."""
    return not isinstance(optimizer, torch.optim.LBFGS)


def non_finite(norm: Tensor, loss: Tensor | None) -> Tensor:
    """1.0 where the update must not happen, else 0.0: () fp32 on the norm's device.

    What is not finite is not 0 less itself but NaN: a third of the launches of two `isfinite`.
    """
    rest = norm - norm
    if loss is not None:
        rest = rest + (loss - loss).to(norm.device, non_blocking=True)
    return torch.nan_to_num(rest.float(), nan=1.0)


class Extremes:
    """Judges gradient norm and loss by z-score; what it drops never enters its baselines.

    After `limit` more extreme than calm steps it stops: their level becomes the baseline.
    """

    def __init__(self, threshold: float, limit: int, warm_up: int) -> None:
        self._baselines = [Baseline(threshold, _DECAY, warm_up, limit) for _ in range(2)]

    def extreme(self, values: Sequence[Tensor | None], spoilt: Tensor) -> Tensor:
        """1.0 where one of `values` is extreme; learns unless that, or `spoilt`, is so."""
        pairs = [(b, v) for b, v in zip(self._baselines, values, strict=True) if v is not None]
        placed = [(b, v, b.judge(v)) for b, v in pairs]
        out = torch.zeros_like(spoilt)
        for _, _, at in placed:
            out = torch.maximum(out, at.outside.to(out.device, out.dtype))
        drop = torch.maximum(out, spoilt)
        for baseline, value, at in placed:
            absent = torch.full_like(value, torch.nan)
            baseline.learn(value, at, torch.where(drop.to(value.device) > 0.0, absent, value))
        return out

    def state_dict(self) -> list[dict[str, Any]]:
        return [baseline.state_dict() for baseline in self._baselines]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        for baseline, saved in zip(self._baselines, state, strict=True):
            baseline.load_state_dict(saved)


class Reflex:
    """Lends the optimizer a `found_inf` for one step and takes it back.

    `by_sync`: where it takes none, the host reads the decision in `leaves_out`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        enabled: bool,
        extremes: Extremes | None = None,
        by_sync: bool = False,
    ) -> None:
        self._extremes = extremes
        self._optimizer: Any = optimizer
        self._enabled = enabled
        self.by_sync = enabled and by_sync and can_skip_by_sync(optimizer)
        self.can_skip = False  # whether the step under way can still be left out
        self._flag: Tensor | None = None  # of that step, where the host has to read it
        stock_sgd = type(optimizer) is torch.optim.SGD
        self._momenta = Momenta(optimizer) if stock_sgd else None
        self._found: Any = _ABSENT
        self._lent = False

    @property
    def armed(self) -> bool:
        """Whether a non-finite update will be dropped; groups may change while training."""
        return self.by_sync or (self._enabled and can_drop(self._optimizer))

    def able(self) -> bool:
        """Whether the optimizer itself can drop this step."""
        if not self._enabled:
            return False
        if self._momenta is None:
            return can_drop(self._optimizer)
        return _fused(self._optimizer) and self._momenta.complete()

    def before_step(self, norm: Tensor, loss: Tensor | None, found: Tensor | None = None) -> Tensor:
        """Judge the update; returns 1.0 where it is dropped (or, unarmed, 0.0).

        `found`: what `found_by_scaler` says of this step; either may drop it.
        """
        flag, able = non_finite(norm, loss), self.able()
        if not able and not self.can_skip:
            return torch.zeros_like(flag)
        if found is not None:
            flag = torch.maximum(flag, found.to(flag.device))
        if self._extremes is not None:
            flag = torch.maximum(flag, self._extremes.extreme((norm, loss), flag))
        if able:
            self._lend(flag)
        else:
            self._flag = flag
        return flag

    def leaves_out(self) -> bool:
        """Whether the step that was just judged must not be entered: the sync that was paid for."""
        flag, self._flag = self._flag, None
        return flag is not None and flag.item() > 0.0

    def _lend(self, flag: Tensor) -> None:
        self._found = getattr(self._optimizer, "found_inf", _ABSENT)
        self._optimizer.found_inf = flag
        self._lent = True

    def state_dict(self) -> list[dict[str, Any]] | None:
        """The baselines, where there are any."""
        return self._extremes.state_dict() if self._extremes is not None else None

    def load_state_dict(self, state: list[dict[str, Any]] | None) -> None:
        if self._extremes is not None and state is not None:
            self._extremes.load_state_dict(state)

    def after_step(self) -> None:
        """Leave the attribute as it was found."""
        self._flag = None
        if not self._lent:
            return
        self._lent = False
        if self._found is _ABSENT:
            del self._optimizer.found_inf
        else:
            self._optimizer.found_inf = self._found
        self._found = _ABSENT


def found_by_scaler(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """0.0 or 1.0, () fp32, within a step that a GradScaler leaves to a fused optimizer; else None.

    Exactly: a scaler adds up its devices, and fused Adam takes its flag out of the count.
    """
    found = getattr(optimizer, "found_inf", None)
    return (found != 0).to(torch.float32).reshape(()) if isinstance(found, Tensor) else None


def loss_scale(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """The scale that the gradients still carry where a GradScaler left unscaling to the step."""
    scale = getattr(optimizer, "grad_scale", None)
    return scale if isinstance(scale, Tensor) else None
