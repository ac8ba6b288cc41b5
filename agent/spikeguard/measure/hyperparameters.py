"""What a schedule or a gradient scaler changes while the run trains: rates of groups, beta2, the
loss scale. Nothing here reads a device value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from spikeguard_protocol import RATES_OF_GROUPS, OptionalSignal

ADAM_BETA2: Final = OptionalSignal.ADAM_BETA2.value
LOSS_SCALE: Final = OptionalSignal.LOSS_SCALE.value


def rates_of_groups(
    optimizers: Sequence[Optimizer], number: int, rates: Sequence[Any], first: Any
) -> Mapping[str, float | Tensor]:
    """Rates of one optimizer's groups that are not the `first` group's, by their signals, counted
    over all optimizers. One on a device is another one where it is another tensor."""
    before = sum(len(each.param_groups) for each in optimizers[:number])
    told = dict[str, float | Tensor]()
    for place, rate in enumerate(rates, before):
        if rate is not None and 0 < place <= len(RATES_OF_GROUPS) and not _is_same(rate, first):
            told[RATES_OF_GROUPS[place - 1]] = (
                rate.clone() if isinstance(rate, Tensor) else float(rate)
            )
    return told


def _is_same(rate: Any, first: Any) -> bool:
    """Tensors are not compared by value: the host would wait."""
    if isinstance(rate, Tensor) or isinstance(first, Tensor):
        return rate is first
    return bool(rate == first)


def beta2_of(optimizers: Iterable[Optimizer]) -> dict[str, float]:
    """The smallest beta2 of all groups that have one, by its signal: no second moment falls
    faster."""
    betas = (group.get("betas") for each in optimizers for group in each.param_groups)
    known = (pair[1] for pair in betas if isinstance(pair, tuple | list) and len(pair) > 1)
    told = [float(beta2) for beta2 in known if not isinstance(beta2, Tensor)]
    return {ADAM_BETA2: min(told)} if told else {}


def loss_scale_of(scaler: GradScaler) -> dict[str, Tensor]:
    """(), on its device, by its signal; empty before its first use. `get_scale()` would wait."""
    scale = getattr(scaler, "_scale", None)
    return {LOSS_SCALE: scale.clone()} if isinstance(scale, Tensor) else {}
