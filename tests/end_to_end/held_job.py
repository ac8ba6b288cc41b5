"""The job of `benchmarks.truth`, which waits at a step until the person has decided."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from benchmarks.truth_job import UPDATES, UpdateRecord
from spikeguard_trainer.__main__ import main
from spikeguard_trainer.options import parse_options
from tests.agent.wire import await_that

HELD_AT = 220  # updates: the fault has come, and enough of its steps
DECIDED = "decided"  # a file beside the record


class Held(UpdateRecord):
    """Lets the job go on past `HELD_AT` once the file is there."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._decided, self._updates = file.with_name(DECIDED), 0

    def _write(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        super()._write(optimizer, args, kwargs)
        self._updates += 1
        if self._updates == HELD_AT and os.environ.get("SPIKEGUARD_SERVER"):
            await_that(self._decided.exists)


if __name__ == "__main__":
    torch.set_num_threads(1)
    Held(parse_options().out.parent / UPDATES).install()
    sys.exit(main())
