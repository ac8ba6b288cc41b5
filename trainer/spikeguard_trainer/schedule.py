"""The optimizer of the reference job and the course of its learning rate."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

WEIGHT_DECAY = 0.1
FINAL_SHARE = 0.1  # of the peak learning rate, at the last step


def make_optimizer(model: nn.Module, *, lr: float, beta2: float) -> AdamW:
    """Fused AdamW; decay on the matrices, none on gains and embeddings."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() >= 2 and not name.startswith("embedding")
        (decayed if matrix else free).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": free, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr, betas=(0.9, beta2), fused=True)


def lr_share(step: int, *, warmup: int, total: int) -> float:
    """Share of the peak learning rate for the step after `step` completed ones."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))


def make_scheduler(optimizer: AdamW, *, warmup: int, total: int) -> LambdaLR:
    """Linear warm-up, then a cosine to a tenth of the peak at step `total`."""
    return LambdaLR(optimizer, lambda step: lr_share(step, warmup=warmup, total=total))
