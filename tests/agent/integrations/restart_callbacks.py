"""What a loop of a framework is given by `test_restart`: importing the frameworks takes seconds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from spikeguard_protocol import Ack, BatchRange, Order, Rollback

sys.path.insert(0, str(Path(__file__).parents[3] / "examples/lightning"))
import lightning_trainer as pl

from tests.agent.heard import hear

SKIP = BatchRange(13, 16)
COMMAND = "test#1.1"


class Protecting(TrainerCallback):  # type: ignore[misc]
    """Says what a server would: keep the checkpoint of step 10 between two steps, then go back."""

    def __init__(self, until: int, back: int = 0) -> None:
        self.watched: Any = None
        self.until, self.back = until, back

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        guard = self.watched.guard
        if not state.global_step >= 12:
            return
        name = "checkpoint-10"
        orders = []
        if state.global_step == self.back:
            action = Rollback(name, 10, SKIP)
            orders = [Order(COMMAND, guard.attempt, action, 60.0, None)]
        protected = (name,) if state.global_step < self.until else ()
        hear(guard, Ack(1, tuple(orders), False, protected))


class ByHand(pl.NextToken):
    """Steps two optimizers itself."""

    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        half = len(held := list(self.parameters())) // 2
        return [torch.optim.SGD(part, lr=0.1) for part in (held[:half], held[half:])]
