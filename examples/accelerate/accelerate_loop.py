"""Accelerate with gradient accumulation. Run it: accelerate launch accelerate_loop.py OUT"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import spikeguard
from spikeguard.integrations.accelerate import AcceleratedGuard, attach

TINY: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


def make_data(rows: int) -> list[dict[str, torch.Tensor]]:
    """Counting modulo 64 from random starts, 16 tokens a row."""
    starts = torch.randint(64, (rows, 1), generator=torch.Generator().manual_seed(1))
    tokens = (starts + torch.arange(16)) % 64
    return [{"input_ids": row, "labels": row} for row in tokens]


def train(out: Path, steps: int = 30) -> AcceleratedGuard:
    """Train to `steps` optimizer steps of two micro-batches."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_attention_heads=2, **TINY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    loader: Any = DataLoader(make_data(16 * (steps + 10)), batch_size=8)  # type: ignore[arg-type]
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    guard = attach(
        accelerator,
        model,
        optimizer,
        run="example-accelerate",
        scheduler=scheduler,
        checkpoints=spikeguard.CheckpointDirectory(out / "checkpoints", every=10),
    )
    guard.resume()
    for batch in guard.batches(loader):
        with accelerator.accumulate(model):
            loss = guard.loss(model(**batch).loss)
            accelerator.backward(loss)
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            guard.step()
        if guard.steps == steps:
            break
    guard.finish()
    return guard


if __name__ == "__main__":
    train(Path(sys.argv[1]))
