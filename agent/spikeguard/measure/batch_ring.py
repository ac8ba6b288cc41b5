"""What the loop showed of its newest batches, kept until the server watches closely.

Token ids and the losses of sequences stay on the device. What leaves the ring is counted into a
histogram of the batches before, in two windows that take turns, so that it is that of the last 100
to 200 of them. While the server watches nothing is counted: what is judged does not enter what it
is compared with. Cost: 4 bytes on the device a token of the newest `STEPS` steps, at most `BYTES`,
and two histograms of 1 MiB; a copy of a step's ids, and one `index_add_` over as many.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BUCKETS = 2**18  # of token ids, by their lowest bits; above the vocabularies in use
ITEM_BYTES = 32 * 2**20  # of tensors and arrays in the items
LOOKED_AT = 1_000  # things in one of them
DEPTH = 3  # of containers within containers


class KeptItems:
    """Items by position, in the order in which they were handed to the loop."""

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._kept: deque[tuple[int, Any, int]] = deque()
        self.bytes = 0

    def add(self, position: int, item: Any) -> None:
        """The loop gets `item`."""
        size = bytes_of(item)
        self._kept.append((position, item, size))
        self.bytes += size
        while self._kept and (
            self.bytes > ITEM_BYTES or abs(position - self._kept[0][0]) > self._positions
        ):
            self.bytes -= self._kept.popleft()[2]

    def clear(self) -> None:
        """The run was taken back: positions come round again."""
        self._kept.clear()
        self.bytes = 0

    def of(self, position: int) -> list[Any]:
        """What was handed out of that position and is here still."""
        return [item for at, item, _ in tuple(self._kept) if at == position]


def bytes_of(item: Any, depth: int = DEPTH) -> int:
    """About what it holds in memory."""
    size = getattr(item, "nbytes", None)
    if isinstance(size, int):
        return size
    inside: Any = item if isinstance(item, list | tuple) else getattr(item, "__dict__", {}).values()
    if isinstance(item, Mapping):
        inside = item.values()
    known = list(inside) if depth else []
    looked = known[:LOOKED_AT]
    own = sum(bytes_of(each, depth - 1) for each in looked)
    return sys.getsizeof(item, 0) + own * len(known) // max(1, len(looked))


STEPS = 48  # newest batches
BYTES = 16 * 2**20  # of their tokens on the device
WINDOW = 100  # batches, until the windows change places


@dataclass(slots=True)
class StepBatch:
    """One step's batch on this rank, as far as it was shown."""

    segment: int
    step: int
    position: int
    rows: list[Tensor]  # int32 ids, (sequences, length) of each micro-batch
    losses: list[Tensor]  # (sequences,) of each micro-batch, nats per token
    items: list[Any] = field(default_factory=list)  # of the loader, once they are asked for
    worst_rank: int = 0  # whose loss was the highest at that step
    event: torch.cuda.Event | None = None  # of the copy to the host

    @property
    def bytes(self) -> int:
        """Of its tokens."""
        return sum(4 * rows.numel() for rows in self.rows)


@dataclass(frozen=True, slots=True)
class Before:
    """How often each token occurred in the batches before."""

    counts: Tensor  # (BUCKETS,) fp32
    batches: int
    last: int  # step
    event: torch.cuda.Event | None = None


class BatchRing:
    """The newest batches of one rank; of no steps it keeps none."""

    def __init__(self, steps: int) -> None:
        self.steps = min(steps, STEPS)
        self.on = False  # something was shown, or items can be named
        self.items: KeptItems | None = None  # where somebody can name them
        self._rows: list[Tensor] = []  # of the step under way
        self._losses: list[Tensor] = []
        self._kept: deque[StepBatch] = deque()
        self.bytes = 0
        self._windows = [torch.empty(0), torch.empty(0)]  # the older one first
        self._held = [0, 0]  # batches in each
        self._last = 0  # step that was counted

    def name_by(self, items: KeptItems | None) -> None:
        """Keep the items of the batches, too."""
        self.items, self.on = items, items is not None

    @torch.no_grad()
    def show_tokens(self, ids: Tensor) -> None:
        """Ids of one micro-batch, of any shape; the last dimension is a sequence's length."""
        if self.steps and ids.numel():
            self.on = True
            shape = (-1, ids.shape[-1]) if ids.ndim > 1 else (1, -1)
            self._rows.append(ids.detach().reshape(shape).to(torch.int32, copy=True))

    @torch.no_grad()
    def show_losses(self, losses: Tensor) -> None:
        """Of one micro-batch's sequences: (B,) means, or (B, ...) of the tokens."""
        if self.steps and losses.numel():
            self.on = True
            self._losses.append(sequence_means(losses).reshape(-1))

    def forget(self) -> None:
        """Drop what was shown since the last step."""
        self._rows, self._losses = [], []

    def close(self, segment: int, step: int, position: int) -> None:
        """The step is made."""
        if self._rows or self._losses or self.items is not None:
            self._close(StepBatch(segment, step, position, self._rows, self._losses))

    @torch.no_grad()
    def _close(self, batch: StepBatch) -> None:
        self.forget()
        if self._kept and self._kept[-1].segment != batch.segment:  # what was undone is no past
            self._kept.clear()
            self.bytes = 0
        self._kept.append(batch)
        self.bytes += batch.bytes
        while len(self._kept) > self.steps or self.bytes > BYTES:
            self._count(self._kept.popleft())

    def settle(self, step: int, worst_rank: int) -> None:
        """All ranks have told of `step`, and `worst_rank` has the highest loss."""
        for batch in reversed(self._kept):
            if batch.step <= step:
                if batch.step == step:
                    batch.worst_rank = worst_rank
                return

    @torch.no_grad()
    def take(self, through: int) -> list[StepBatch]:
        """Batches up to that step, on their way to the host; they are kept no longer."""
        taken = []
        while self._kept and self._kept[0].step <= through:
            batch = self._kept.popleft()
            self.bytes -= batch.bytes
            moved, batch.event = _to_host([*batch.rows, *batch.losses])
            batch.rows, batch.losses = moved[: len(batch.rows)], moved[len(batch.rows) :]
            batch.items = self.items.of(batch.position) if self.items is not None else []
            taken.append(batch)
        return taken

    @torch.no_grad()
    def before(self) -> Before | None:
        """The histogram of the batches before, on its way to the host."""
        if not sum(self._held):
            return None
        (counts,), event = _to_host([self._windows[0] + self._windows[1]])
        return Before(counts, sum(self._held), self._last, event)

    def _count(self, batch: StepBatch) -> None:
        self.bytes -= batch.bytes
        if not batch.rows:
            return
        ids = torch.cat([rows.reshape(-1) for rows in batch.rows]).long() & (BUCKETS - 1)
        if self._windows[0].device != ids.device or not len(self._windows[0]):
            self._windows = [torch.zeros(BUCKETS, device=ids.device) for _ in self._windows]
            self._held = [0, 0]
        if self._held[1] >= WINDOW:
            older, newer = self._windows
            self._windows, self._held = [newer, older.zero_()], [self._held[1], 0]
        ones = self._windows[1].new_ones(1).expand(len(ids))
        self._windows[1].index_add_(0, ids, ones)
        self._held[1] += 1
        self._last = batch.step


def sequence_means(losses: Tensor) -> Tensor:
    """fp32, a copy, of (B,) means or of the mean of each of (B, ...) tokens' losses."""
    each = losses.detach().to(torch.float32, copy=True)
    return each if each.ndim < 2 else each.flatten(1).mean(1)


def _to_host(values: Sequence[Tensor]) -> tuple[list[Tensor], torch.cuda.Event | None]:
    """Copies, and the event that passes once those of a device have come."""
    event, copies = None, []
    for value in values:
        if not value.is_cuda:
            copies.append(value.cpu())
            continue
        pinned = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        copies.append(pinned.copy_(value, non_blocking=True))
        event = event or torch.cuda.Event()
        event.record(torch.cuda.current_stream(value.device))
    return copies, event
