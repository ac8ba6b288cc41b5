"""A plain loop, compiled or not. Run it: python plain_pytorch.py OUT"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import spikeguard

VOCABULARY, CONTEXT = 64, 16


def make_model() -> nn.Module:
    """Tokens (rows, context) -> logits (rows, context, vocabulary)."""
    return nn.Sequential(
        nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, VOCABULARY)
    )


class Counting(Dataset[Tensor]):
    """Rows of (context + 1,) tokens that count on, modulo the vocabulary."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Tensor:
        return (7 * row + torch.arange(CONTEXT + 1)) % VOCABULARY


def train(out: Path, steps: int = 60, backend: str | None = None) -> spikeguard.Guard:
    """Train to `steps`; `backend`: of torch.compile, None leaves the model as it is."""
    torch.manual_seed(0)
    model = make_model()
    if backend:
        model.compile(backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    loader: DataLoader[Tensor] = DataLoader(Counting(8 * steps), batch_size=8)

    guard = spikeguard.attach(
        model,
        optimizer,
        run="example-plain",
        scheduler=scheduler,
        checkpoints=spikeguard.CheckpointDirectory(out / "checkpoints", every=20),
        tokens_per_step=8 * CONTEXT,
    )
    guard.resume()
    for rows in guard.batches(loader):
        logits = model(rows[:, :-1])
        loss = guard.loss(nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
        loss.backward()
        guard.clip_grad_norm_(1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        guard.step()
        if guard.steps == steps:
            break
    guard.finish()
    return guard


if __name__ == "__main__":
    train(Path(sys.argv[1]), backend="inductor")
