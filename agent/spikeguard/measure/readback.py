"""Brings a step's few device scalars to the host without waiting for them.

Law: the loop never waits for a value it has just asked for. The scalars of a step are stacked and
copied to a pinned row while the device goes on; they are read when the copy's event has passed,
or `lag` steps later where all ranks must read the same step. The host then waits only if it runs
more than `lag` steps ahead of the device. Bounded: `DEPTH` rows for scalars and `WIDE_DEPTH` for
what is measured by layer, made once and used in turn. On a CPU there is
nothing to bring: the tensors themselves are handed on, and read by whoever needs numbers first. A
step's `Row` holds them: values that nobody changes any more; where the record is made, by the
outbox's thread, they are read. The loop reads only what ranks exchange.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spikeguard.optim.clipping.rules import ClipSignal, clipped_to
from spikeguard_protocol import BatchRange, Samples, Signal

DEPTH = 64  # steps
WIDE_DEPTH = 16  # measurements by layer
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
        """The values, waiting for the copy if it must; the row is free for another step then."""
        row = self.row
        if isinstance(row, list):
            return row
        event = self.event
        if event is not None:
            event.synchronize()
        taken: list[float] = row.tolist()
        if self.row is not row:  # another thread has freed the row since, which may be in use again
            return self.take()
        self.row, self.event = taken, None
        return taken

    def free(self) -> None:
        """Keep the values elsewhere, so that the pinned row may be used again; waits if it must."""
        row, event = self.row, self.event
        if event is not None and not isinstance(row, list):
            if not event.query():  # the host has run a whole ring ahead of the device
                event.synchronize()
            self.row, self.event = row.clone(), None

    def read(self) -> dict[str, float]:
        """The values by name, waiting for the copy if it must."""
        return dict(zip(self.names, self.take(), strict=True))


Scalars = dict[str, Tensor] | Pending  # of one step; the tensors where all lie on the host


def arrived(scalars: Scalars) -> bool:
    """Whether reading now would not wait."""
    return isinstance(scalars, dict) or scalars.arrived()


def copied(scalars: Scalars) -> bool:
    """Whether they come from a device, and may be on their way still."""
    return not isinstance(scalars, dict) and scalars.event is not None


def take(scalars: Scalars) -> None:
    """Free the pinned row, if there is one, for another step."""
    if not isinstance(scalars, dict):
        scalars.take()


def read(scalars: Scalars) -> dict[str, float]:
    """The values by name, waiting for the copy if it must."""
    if not isinstance(scalars, dict):
        return scalars.read()
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


class _Ring:
    """Pinned rows that are used in turn, with the event of each one's newest copy."""

    def __init__(self, depth: int, width: int) -> None:
        self.width, self._depth, self._next = width, depth, 0
        self._rows = torch.empty(depth, width, pin_memory=True)
        self._events = [torch.cuda.Event() for _ in range(depth)]
        self._taken_by: list[Pending | None] = [None] * depth

    def copy(self, names: tuple[str, ...], stacked: Tensor) -> Pending:
        """Start the copy of `stacked`, (n,), into the next row."""
        place, self._next = self._next, (self._next + 1) % self._depth
        before = self._taken_by[place]
        if before is not None:
            before.free()
        row, event = self._rows[place, : len(names)], self._events[place]
        row.copy_(stacked, non_blocking=True)
        event.record(torch.cuda.current_stream(stacked.device))
        self._taken_by[place] = pending = Pending(names, row, event)
        return pending


class Readback:
    """The rows that are used in turn."""

    def __init__(self) -> None:
        self._scalars: _Ring | None = None
        self._wide: _Ring | None = None

    def send(self, scalars: dict[str, Tensor]) -> Scalars:
        """Start the copy of `scalars`, each () on any device; nobody changes them any more."""
        for value in scalars.values():
            if not value.is_cpu:
                return self._copied(tuple(scalars)[:WIDTH], list(scalars.values())[:WIDTH])
        return scalars

    def _copied(self, names: tuple[str, ...], values: list[Tensor]) -> Pending:
        stacked = _stack(values)
        if not stacked.is_cuda:
            return Pending(names, stacked if stacked.is_cpu else stacked.cpu(), None)
        if self._scalars is None:
            self._scalars = _Ring(DEPTH, WIDTH)
        return self._scalars.copy(names, stacked)

    def send_many(self, scalars: Mapping[str, Tensor]) -> Pending:
        """The same for any number of scalars, now and then."""
        names = tuple(scalars)
        stacked = _stack([scalars[name] for name in names]) if names else torch.empty(0)
        return self.send_all(names, stacked)

    def send_all(self, names: tuple[str, ...], stacked: Tensor) -> Pending:
        """The same of values that lie in one tensor already, (n,), which nobody changes."""
        if not stacked.is_cuda:
            return Pending(names, stacked if stacked.is_cpu else stacked.cpu(), None)
        if self._wide is None or self._wide.width < len(names):
            self._wide = _Ring(WIDE_DEPTH, len(names))
        return self._wide.copy(names, stacked)


def _stack(values: Sequence[Tensor]) -> Tensor:
    device = next((v.device for v in values if v.device.type != "cpu"), values[0].device)
    return torch.stack([_placed(v, device) for v in values])


def _placed(value: Tensor, device: torch.device) -> Tensor:
    if value.dtype is torch.float32 and value.device == device and not value.requires_grad:
        return value
    return value.detach().float().to(device, non_blocking=True)
