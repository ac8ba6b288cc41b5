"""The door."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import torch

from spikeguard.checkpoints import CheckpointDirectory
from spikeguard.guard import Guard
from spikeguard.settings import Settings


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: str | None = None,
    project: str | None = None,
    scheduler: Any = None,
    state: Sequence[Any] = (),
    checkpoints: CheckpointDirectory | None = None,
    server: str | None = None,
    token: str | None = None,
    directory: str | PathLike[str] | None = None,
    tokens_per_step: int | None = None,
    micro_batches: int = 1,
    settings: Settings | None = None,
) -> Guard:
    """Watch `model` and `optimizer`; see the module's own docstring."""
    raise NotImplementedError
