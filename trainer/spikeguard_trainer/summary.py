"""How a run ended: its validation loss and its counts, as JSON.

The validation batches are fixed, so that two runs differ by their weights alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from spikeguard_trainer.data import Bytes, validation_batches
from spikeguard_trainer.model import Transformer

VALIDATION_ROWS = 16


@dataclass(frozen=True, slots=True)
class Summary:
    """One attempt, at its end."""

    run: str
    steps: int  # optimizer steps that stand behind the final weights
    position: int  # next in the data order; above `steps` by what was skipped
    validation_loss: float  # nats a byte
    trained_steps: int  # in this attempt, those that were rolled back included
    seconds: float  # in this attempt, of training
    rollbacks: int  # in this attempt
    world_size: int
    finished: bool  # False: stopped by a command

    def write(self, file: Path) -> None:
        """As one JSON object; a loss that is not finite is written as a word."""
        plain = asdict(self)
        if not math.isfinite(self.validation_loss):
            plain["validation_loss"] = str(self.validation_loss)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(plain, indent=1) + "\n")


@torch.no_grad()
def validation_loss(
    model: Transformer, text: Bytes, *, batches: int, precision: torch.autocast
) -> float:
    """The mean loss over a fixed set of held-out batches, nats a byte. The host waits here."""
    device = next(model.parameters()).device
    losses = []
    for tokens, targets in validation_batches(
        text, count=batches, rows=VALIDATION_ROWS, context=model.shape.context
    ):
        with precision:
            losses.append(model(tokens.to(device), targets.to(device)))
    return float(torch.stack(losses).mean())
