"""How far one optimizer step moved the parameters: |theta after - theta before| / lr.

Law: decay included, divided by the rate that the step really used, so that an LR change does not
move it. On the device only. Cost: the sample is cloned before each step (at most
`update_sample_share` of the parameters); the exact norm keeps one buffer the size of this rank's
parameters, made at its first use, and reads and writes the parameters' bytes four times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spikeguard.norms import combine, global_norm, local, sampled_rows


class Moved:
    """The movement of some parameters, kept apart by learning rate."""

    def __init__(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self._groups = groups
        self._before: list[list[Tensor]] | None = None
        self._armed = False

    @torch.no_grad()
    def before_step(self) -> None:
        """Remember where the parameters stand."""
        if self._before is None:
            self._before = [[torch.empty_like(t) for t in group] for group in self._groups]
        for kept, group in zip(self._before, self._groups, strict=True):
            if group:
                torch._foreach_copy_(kept, [t.detach() for t in group])
        self._armed = True

    @torch.no_grad()
    def after_step(self, rates: Sequence[Any]) -> Tensor | None:
        """The L2 norm of the movement over the rates, () fp32; None where there is none."""
        if not self._armed or self._before is None:
            return None
        self._armed = False
        norms = []
        for kept, group, rate in zip(self._before, self._groups, rates, strict=True):
            if group and (isinstance(rate, Tensor) or rate > 0.0):
                torch._foreach_sub_(kept, [t.detach() for t in group])
                norm = global_norm(kept)
                norms += [norm / rate] if norm is not None else []
        return combine(norms)


def all_parameters(optimizer: torch.optim.Optimizer) -> Moved:
    """The movement of everything the optimizer trains."""
    return Moved([list(group["params"]) for group in optimizer.param_groups])


def sample_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, share: float) -> Moved:
    """The movement of a fixed sample: one matrix per block, at most `share` of the parameters."""
    named = list(model.named_parameters())
    rows = dict(sampled_rows([(name, local(p)) for name, p in named], share))
    chosen = {id(p): rows[name] for name, p in named if name in rows}
    return Moved(
        [
            [local(p.detach())[: chosen[id(p)]] for p in group["params"] if id(p) in chosen]
            for group in optimizer.param_groups
        ]
    )
