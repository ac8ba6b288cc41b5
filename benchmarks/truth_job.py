"""The trainer, with a record of every optimizer step that the product has no part in.

`python -m benchmarks.truth_job [options of spikeguard_trainer]`. Beside the trainer's log, one row
a step in the same order: `updates.csv` holds the clock after the step and whether a weight changed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from spikeguard_trainer.__main__ import main
from spikeguard_trainer.options import parse_options

UPDATES = "updates.csv"


class UpdateRecord:
    """Writes a row for every optimizer step; compares all weights, which are few here."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("a")
        self._before: list[torch.Tensor] = []

    def install(self) -> None:
        """From now on every optimizer of this process is recorded."""
        register_optimizer_step_pre_hook(self._keep)
        register_optimizer_step_post_hook(self._write)

    def _keep(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self._before = [p.detach().clone() for p in _parameters(optimizer)]

    def _write(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        pairs = zip(self._before, _parameters(optimizer), strict=True)
        changed = any(not torch.equal(before, now) for before, now in pairs)
        self._file.write(f"{time.time()!r},{int(changed)}\n")
        self._file.flush()


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


if __name__ == "__main__":
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    torch.set_num_threads(1)
    UpdateRecord(parse_options().out.parent / UPDATES).install()
    sys.exit(main())
