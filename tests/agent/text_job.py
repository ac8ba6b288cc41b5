"""The reference trainer's tiny model on real text, optional signals shown to the guard."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spikeguard import Guard, Settings, attach
from spikeguard_trainer.data import Batch, BatchLoader, read_corpus
from spikeguard_trainer.faults import parse_fault
from spikeguard_trainer.inject import corrupt_batch
from spikeguard_trainer.model import Transformer
from spikeguard_trainer.options import PRESETS
from spikeguard_trainer.schedule import make_optimizer

TINY = PRESETS["tiny"]
ROWS = 12
TEXT = read_corpus(Path(sysconfig.get_path("stdlib")) / "typing.py").training


class TextJob:
    """One process, one loop; `settings` are those of `FAST` with `chosen`."""

    def __init__(
        self,
        folder: Path,
        *faults: str,
        server: str | None = None,
        micro_batches: int = 1,
        dtype: torch.dtype = torch.float32,
        lr: float = 3e-3,
        name_batch: Any = None,
        decode: Any = None,
        **chosen: Any,  # of the settings
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(3)
        self.model = Transformer(TINY.shape).to(dtype)
        self.optimizer = make_optimizer(self.model, lr=lr, beta2=0.95)
        self.loader = BatchLoader(
            TEXT,
            rows=ROWS,
            context=TINY.shape.context,
            seed=5,
            micro_batches=micro_batches,
            corrupt=partial(corrupt_batch, tuple(map(parse_fault, faults)), 5),
        )
        self.guard: Guard = attach(
            self.model,
            self.optimizer,
            run="text",
            server=server,
            directory=folder,
            micro_batches=micro_batches,
            name_batch=name_batch,
            decode=decode,
            settings=Settings(
                send_interval_s=0.02, timeout_s=2.0, backoff_s=0.2, snapshot_every=0, **chosen
            ),
        )
        self._batches: Iterator[Batch] | None = None
        self.seen: list[list[Batch]] = []  # by step

    def losses(self, batch: Batch) -> Tensor:
        """Nats of every token, (rows, context)."""
        scores = self.model.logits(batch.tokens).float()
        flat = F.cross_entropy(scores.flatten(0, 1), batch.targets.flatten(), reduction="none")
        return flat.view_as(batch.targets)

    def train_step(self) -> None:
        self._batches = self._batches or iter(self.guard.batches(self.loader))
        step: list[Batch] = []
        while not step or not step[-1].completes_step:
            batch = next(self._batches)
            step.append(batch)
            self.guard.tokens(batch.tokens)
            losses = self.losses(batch)
            self.guard.sequence_losses(losses)
            self.guard.loss(losses.mean()).backward()
        self.seen.append(step)
        self.guard.clip_grad_norm_(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.guard.step()

    def train_to(self, step: int) -> None:
        while self.guard.steps < step:
            self.train_step()
