"""What was measured layer by layer of late, kept until somebody wants to know.

Gradient norms by layer are measured once in `slow_signals_every` steps and wait here, on the host.
When the server starts to watch closely (a precursor or an incident), everything that waits goes
into the outbox, once, and what is measured from then on follows until the server is content.
Law: bounded in steps and layers; the oldest go first. Nothing is encoded here and nothing waits for
the device: the outbox's thread reads the values.
Cost: references, and once an incident one queue entry for each thing that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from spikeguard.faults import log
from spikeguard.measure.readback import Pending, Row
from spikeguard_protocol import LayerNorms, Signal
from spikeguard_protocol.messages import MAX_LAYERS


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
    """The newest measurements by layer."""

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
            self._kept.append(detail)
            return ()
        kept = (*self._kept, detail)
        self._kept.clear()
        return kept
