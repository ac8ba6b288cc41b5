"""Real text in a fixed order, with the faults of a row in it, and the plan of one start of a job.

Invariants: the item at an index is a function of the index, the rank and the plan alone. Positions
in `omit` are left out by the text itself, which knows nothing of the guard: what a run without
those batches trains on. Every run of a row makes its last steps on the same text, which it meets
there for the first time, however many positions were left out before.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from spikeguard_trainer.data import Bytes, read_corpus, rows_at

PLAN = "REAL_JOB_PLAN"
CONTEXT, ROWS, SEED = 64, 8, 7
LAST = 16  # steps at the end of every run, on text of their own
EVERY_RANK = -1
APART = 100_000  # where that begins, in positions


@dataclass(frozen=True, slots=True)
class Plan:
    """What one start of a job does; travels in the environment."""

    out: str  # the run's folder
    record: str  # the folder of what its ranks saw
    steps: int
    stop: int  # the step after which the process ends, the schedule's length notwithstanding
    bad: tuple[int, int] = (0, 0)  # positions whose text is noise
    omit: tuple[int, int] = (0, 0)  # positions that the text leaves out
    nan: tuple[int, int] | None = None  # step and rank of a gradient that is NaN
    kill: int | None = None  # the step after which the first start is killed
    mark: int = 0  # the step after which the state's digest is written down
    checkpoint_every: int = 20

    @classmethod
    def read(cls) -> Plan:
        """From the environment."""
        plain = json.loads(os.environ[PLAN])
        for name in ("bad", "omit", "nan"):
            plain[name] = tuple(plain[name]) if plain.get(name) is not None else None
        return cls(**plain)

    def environment(self) -> dict[str, str]:
        return {PLAN: json.dumps(asdict(self))}

    def place(self, position: int) -> int:
        """Where the text lies that a position of the data order is made of."""
        first, end = self.omit
        position += end - first if position >= first else 0
        left_out = sum(end - first for first, end in (self.bad, self.omit))
        past = position - (self.steps + left_out - LAST)
        return position if past < 0 else APART + past


@cache
def text() -> Bytes:
    """The standard library's sources."""
    return read_corpus(None).training


def item_at(plan: Plan, index: int, *, micro: int = 1, rank: int = 0, ranks: int = 1) -> Tensor:
    """(rows, context + 1) int64: the `index`-th item that this rank trains on."""
    position, part = divmod(index, micro)
    number = (plan.place(position) * micro + part) * ranks + rank
    if plan.bad[0] <= position < plan.bad[1]:
        noise = np.random.Philox(key=[SEED, 9], counter=[0, 0, 0, number])
        drawn = noise.random_raw(ROWS * (CONTEXT + 1)).reshape(ROWS, CONTEXT + 1)
        return torch.from_numpy((drawn % np.uint64(256)).astype(np.int64))
    tokens, targets = rows_at(text(), number, rows=ROWS, context=CONTEXT, seed=SEED)
    return torch.cat((tokens, targets[:, -1:]), dim=1)


class Items(torch.utils.data.Dataset[Tensor]):
    """The same for loaders that ask by index: `rows` of them are one item."""

    def __init__(self, plan: Plan, length: int, micro: int = 1) -> None:
        self._plan, self._length, self._micro = plan, length, micro

    def __len__(self) -> int:
        return self._length * ROWS

    def __getitem__(self, row: int) -> Tensor:
        item, within = divmod(row, ROWS)
        if item >= self._length:
            raise IndexError(row)
        return item_at(self._plan, item, micro=self._micro)[within]
