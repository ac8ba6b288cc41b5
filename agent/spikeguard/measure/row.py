"""One step's sample between the device and the outbox.

Law: values that nobody changes any more. On a CPU they are read where the record is made, by the
outbox's thread; the loop reads only what ranks exchange.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from spikeguard.measure.readback import Pending, Scalars, read
from spikeguard.optim.clipping.rules import clipped_to
from spikeguard_protocol import BatchRange, Samples, Signal

# plain strings: a member of an enum takes longer to look up and to hash
GRAD_NORM = Signal.GRAD_NORM.value
STEP_TIME = Signal.STEP_TIME.value
TOKENS_PER_SECOND = Signal.TOKENS_PER_SECOND.value


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
    activations: Pending | None = None  # L2 by layer, where asked for
    limit: float | None = None  # that the gradients' norm was clipped to, where that is all

    def read(self) -> dict[str, float]:
        """All its values by name; waits for the device if they have not arrived."""
        values = {**read(self.scalars), **self.known}
        if self.limit is not None and GRAD_NORM in values:
            values |= clipped_to(values[GRAD_NORM], self.limit)
        took_s = 0.0 if self.before is None else self.at - self.before
        if took_s > 0.0:
            values[STEP_TIME] = took_s
            if self.tokens is not None:
                values[TOKENS_PER_SECOND] = self.tokens / took_s
        return values

    def exchanged(self, names: Container[str]) -> dict[str, float]:
        """Those of its values; on a CPU no others are read."""
        if type(self.scalars) is dict:
            read_now = {n: value.item() for n, value in self.scalars.items() if n in names}
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
