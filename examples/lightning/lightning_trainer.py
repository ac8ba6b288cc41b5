"""Lightning. Run it until it is done, since a rollback ends it with status 76:

until python lightning_trainer.py OUT; do [ $? -eq 76 ] || break; done
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from spikeguard.integrations.lightning import Watched


class NextToken(LightningModule):  # type: ignore[misc]
    """Predicts the next of 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64), nn.GELU())
        self.head = nn.Linear(64, 64)

    def training_step(self, rows: Tensor, _: int) -> Tensor:
        """Mean nats per token of (rows, context + 1)."""
        logits = self.head(self.net(rows[:, :-1]))
        return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        """Fused, so that a non-finite update can be kept out without a sync."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, fused=True)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=30)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def make_loader(rows: int) -> DataLoader[Tensor]:
    """Counting modulo 64 from random starts."""
    starts = torch.randint(64, (rows, 1), generator=torch.Generator().manual_seed(1))
    return DataLoader((starts + torch.arange(17)) % 64, batch_size=8)  # type: ignore[arg-type]


def make_trainer(watched: Watched, out: Path, steps: int = 30) -> Trainer:
    """A trainer as anybody has one, with one callback more."""
    return Trainer(
        accelerator="auto",
        max_steps=steps,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[watched],
        default_root_dir=out,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )


def train(out: Path) -> Watched:
    """Train to the end, from where the run stands."""
    torch.manual_seed(0)
    watched = Watched(out / "checkpoints", every=10, run="example-lightning")
    trainer = make_trainer(watched, out)
    trainer.fit(NextToken(), watched.loader(make_loader(640)), ckpt_path=watched.checkpoint())
    return watched


if __name__ == "__main__":
    train(Path(sys.argv[1]))
