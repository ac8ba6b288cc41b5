"""What the loop tells the outside world of each step: a CSV row, and a line on the terminal.

The device never waits for the log. On CUDA a step's values are read two steps later.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

COLUMNS = "step,position,loss,grad_norm,lr"
LAG_CUDA = 2  # steps
LINES = 20  # on the terminal, a run


@dataclass(frozen=True, slots=True)
class Row:
    """One trained step."""

    step: int
    position: int  # of the batch it trained on
    lr: float
    values: Tensor  # (2,) loss and grad_norm, on the host once `ready`
    ready: torch.cuda.Event | None


class StepLog:
    """One row for every trained step; after a rollback or restart step numbers repeat."""

    def __init__(self, file: Path | None, total: int, tokens_per_step: int, *, shown: bool) -> None:
        self.rows = 0  # steps trained in this attempt
        self.returns = 0  # times that the step number went back
        self._newest_step = 0
        self._file = _open(file) if file else None
        self._waiting: deque[Row] = deque()
        self._total, self._tokens, self._shown = total, tokens_per_step, shown
        self._shown_row, self._shown_at = 0, time.monotonic()

    def add(self, step: int, position: int, loss: Tensor, grad_norm: Tensor, lr: float) -> None:
        """Note a step; `loss` and `grad_norm` are scalars on the device."""
        self.rows += 1
        if step <= self._newest_step:
            self.returns += 1
            if self._shown:
                print(f"back to step {step - 1} from step {self._newest_step}", file=sys.stderr)
        self._newest_step = step
        values = torch.stack((loss.float(), grad_norm.float())).to("cpu", non_blocking=True)
        ready = None
        if loss.is_cuda:
            ready = torch.cuda.Event()
            ready.record()
        self._waiting.append(Row(step, position, lr, values, ready))
        self._write_beyond(LAG_CUDA if ready else 0)

    def close(self) -> None:
        """Write what is left."""
        self._write_beyond(0)
        if self._file:
            self._file.close()

    def _write_beyond(self, lag: int) -> None:
        while len(self._waiting) > lag:
            row = self._waiting.popleft()
            if row.ready:
                row.ready.synchronize()  # was recorded `lag` steps ago
            self._write(row, *row.values.tolist())

    def _write(self, row: Row, loss: float, grad_norm: float) -> None:
        if self._file:
            self._file.write(f"{row.step},{row.position},{loss!r},{grad_norm!r},{row.lr!r}\n")
            self._file.flush()
        every = max(1, self._total // LINES)
        if self._shown and (row.step in (1, self._total) or row.step % every == 0):
            now, trained = time.monotonic(), self.rows - self._shown_row
            rate = trained * self._tokens / max(1e-9, now - self._shown_at) / 1e3
            self._shown_at, self._shown_row = now, self.rows
            at = f"step {row.step:>{len(str(self._total))}}/{self._total}"
            print(f"{at}  loss {loss:.3f}  {rate:.1f}k tok/s", file=sys.stderr, flush=True)


def _open(file: Path) -> IO[str]:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = file.open("a")
    if handle.tell() == 0:
        handle.write(COLUMNS + "\n")
    return handle
