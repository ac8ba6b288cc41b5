"""Brings a step's few device scalars to the host without waiting for them.

The scalars of a step are stacked and copied to pinned memory while the device goes on; they are
read when the copy's event has passed, or `lag` steps later where all ranks must read the same step.
The host then waits only if it runs more than `lag` steps ahead of the device. On a CPU the tensors
themselves are handed on. Torch keeps pinned memory for the next that asks for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spikeguard.faults import log
from spikeguard.optim.clipping import ClipSignal, clipped_to
from spikeguard_protocol import BatchRange, LayerNorms, Samples, Signal
from spikeguard_protocol.messages import MAX_LAYERS

DEPTH = 64  # steps on their way, at most
WIDTH = 56  # scalars a step; with what the host knows, what a record of samples holds
# plain strings: a member of an enum takes longer to look up and to hash
CLIP_LIMIT = ClipSignal.LIMIT.value
GRAD_NORM = Signal.GRAD_NORM.value
STEP_TIME = Signal.STEP_TIME.value
TOKENS_PER_SECOND = Signal.TOKENS_PER_SECOND.value


@dataclass(slots=True)
class Pending:
    """Scalars on their way; `row` may be read once `event` has passed."""

    names: tuple[str, ...]
    row: Tensor | list[float]  # one for each name, on the host
    event: torch.cuda.Event | None

    def arrived(self) -> bool:
        """Whether reading now would not wait."""
        return self.event is None or bool(self.event.query())

    def take(self) -> list[float]:
        """The values, waiting for the copy if it must; several threads may ask."""
        row, event = self.row, self.event
        if isinstance(row, list):
            return row
        if event is not None:
            event.synchronize()
        taken: list[float] = row.tolist()
        self.row, self.event = taken, None
        return taken


Scalars = dict[str, Tensor] | Pending  # of one step; the tensors where all lie on the host


def arrived(scalars: Scalars) -> bool:
    """Whether reading now would not wait."""
    return isinstance(scalars, dict) or scalars.arrived()


def copied(scalars: Scalars) -> bool:
    """Whether they come from a device, and may be on their way still."""
    return not isinstance(scalars, dict) and scalars.event is not None


def read(scalars: Scalars) -> dict[str, float]:
    """The values by name, waiting for the copy if it must."""
    if not isinstance(scalars, dict):
        return dict(zip(scalars.names, scalars.take(), strict=True))
    return {name: value.item() for name, value in list(scalars.items())[:WIDTH]}


class Row(NamedTuple):
    """One step's sample while its values are on their way; a call makes the record."""

    step: int
    segment: int
    position: int  # of its batch in the data order
    at: float  # when the step ended, monotonic seconds
    before: float | None  # when the one before it ended
    tokens: int | None  # of the step, over all ranks
    known: dict[str, float]  # measured on the host
    scalars: Scalars
    layers: Pending | None = None  # gradient norm by parameter
    limit: float | None = None  # that the gradients' norm was clipped to, where that is all

    def read(self) -> dict[str, float]:
        """All its values by name; waits for the device if they have not arrived."""
        values = {**read(self.scalars), **self.known}
        if self.limit is not None and GRAD_NORM in values:
            values |= clipped_to(values[GRAD_NORM], self.limit)
        elif not math.isfinite(values.get(CLIP_LIMIT, 0.0)):
            del values[CLIP_LIMIT]  # a rule that warms up has none
        took_s = 0.0 if self.before is None else self.at - self.before
        if took_s > 0.0:
            values[STEP_TIME] = took_s
            if self.tokens is not None:
                values[TOKENS_PER_SECOND] = self.tokens / took_s
        return values

    def exchanged(self, names: Container[str]) -> dict[str, float]:
        """Those of its values; on a CPU no others are read."""
        if type(self.scalars) is dict:
            read_now = {n: v.item() for n, v in self.scalars.items() if n in names}
        else:
            read_now = read(self.scalars)
        return {**read_now, **self.known}

    def record(self, values: dict[str, float]) -> Samples:
        """What is told of it."""
        columns = {name: (value,) for name, value in values.items()}
        batches = BatchRange(self.position, self.position + 1)
        return Samples(self.segment, (self.step,), columns, (batches,))

    def __call__(self) -> Samples:
        return self.record(self.read())


def send(scalars: dict[str, Tensor]) -> Scalars:
    """Start the copy of `scalars`, each () on any device; nobody changes them any more."""
    for value in scalars.values():
        if not value.is_cpu:
            first = list(scalars.values())[:WIDTH]
            stacked = torch.stack([_placed(each, value.device) for each in first])
            return send_all(tuple(scalars)[:WIDTH], stacked)
    return scalars


def send_all(names: tuple[str, ...], stacked: Tensor) -> Pending:
    """The same of values that lie in one tensor already, (n,)."""
    if not stacked.is_cuda:
        return Pending(names, stacked if stacked.is_cpu else stacked.cpu(), None)
    pinned = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
    event = torch.cuda.Event()
    row = pinned.copy_(stacked, non_blocking=True)
    event.record(torch.cuda.current_stream(stacked.device))
    return Pending(names, row, event)


def _placed(value: Tensor, device: torch.device) -> Tensor:
    if value.dtype is torch.float32 and value.device == device and not value.requires_grad:
        return value
    return value.detach().float().to(device, non_blocking=True)


# ---- norms by layer --------------------------------------------------------------------------


class Detail(NamedTuple):
    """Norms by layer of one step; a call waits for them and makes the record."""

    segment: int
    step: int
    norms: Pending

    def __call__(self) -> LayerNorms:
        measured = zip(self.norms.names[:MAX_LAYERS], self.norms.take(), strict=False)
        norms = {name: norm for name, norm in measured if norm}  # 0.0: it has no gradient
        return LayerNorms(self.segment, self.step, Signal.GRAD_NORM.value, norms)


class FlightRecorder:
    """The newest measurements by layer. When the server starts to watch closely, all that waits
    goes into the outbox, once, and what is measured from then on follows until it is content."""

    def __init__(self, steps: int) -> None:
        """`steps`: how many are kept."""
        self._kept: deque[Detail] = deque(maxlen=steps)
        self._told = False  # that some layers are left out

    def pass_on(self, row: Row, watched: bool) -> Iterable[Detail]:
        """What is to be sent now of `row` and of the steps before it; the rest is kept."""
        assert row.layers is not None
        if (layers := len(row.layers.names)) > MAX_LAYERS and not self._told:
            self._told = True
            log.warning("norms by layer are told of the first %d of %d layers", MAX_LAYERS, layers)
        detail = Detail(row.segment, row.step, row.layers)
        if not watched:
            if self._kept and self._kept[-1].norms.arrived():  # its pinned memory serves again
                self._kept[-1].norms.take()
            self._kept.append(detail)
            return ()
        kept = (*self._kept, detail)
        self._kept.clear()
        return kept
