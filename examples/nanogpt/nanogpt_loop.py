"""A loop of nanoGPT's shape: random batches, one fetched ahead, micro-batches, a schedule by step.

Run it: python nanogpt_loop.py OUT
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import spikeguard

BLOCK, BATCH, MICRO, PEAK = 16, 8, 2, 3e-3
SEED = 1337
DATA = (7 * torch.arange(4096)) % 64  # instead of train.bin


def get_batch() -> tuple[Tensor, Tensor]:
    """Rows from random places, as nanoGPT draws them."""
    places = torch.randint(len(DATA) - BLOCK, (BATCH,))
    rows = [DATA[place : place + BLOCK + 1] for place in places.tolist()]
    return torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])


def rate(step: int, steps: int) -> float:
    """Cosine down to a tenth."""
    return PEAK * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def train(out: Path, steps: int = 60) -> spikeguard.Guard:
    """Train to `steps` optimizer steps of two micro-batches."""
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, fused=True)
    guard = spikeguard.attach(
        model,
        optimizer,
        run="example-nanogpt",
        micro_batches=MICRO,
        checkpoints=spikeguard.CheckpointDirectory(out / "guard", every=20),
    )
    iter_num = guard.resume()
    # What is drawn depends on seed and position alone: a restart and a rollback draw it again.
    batches = iter(guard.batches(spikeguard.by_position(lambda _: get_batch(), seed=SEED)))
    x, y = next(batches)  # nanoGPT fetches one ahead
    while iter_num < steps and not guard.stopped:
        for group in optimizer.param_groups:
            group["lr"] = rate(iter_num, steps)
        for _ in range(MICRO):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            guard.loss(loss)  # before it is divided
            x, y = next(batches)
            (loss / MICRO).backward()
        guard.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        guard.step()
        iter_num = guard.steps  # not iter_num += 1: a rollback takes it back
    guard.finish()
    return guard


if __name__ == "__main__":
    train(Path(sys.argv[1]))
