"""Which buffers of the model are not finite, told without a wait for the device."""

from __future__ import annotations

import math

from spikeguard.faults import Faults
from spikeguard.measure.readback import Pending, Readback
from spikeguard.optim.buffers import Buffers

NAMED = 4  # in a sentence
REMEDY = "Training does not mend them: roll back to a target from before, or set them anew"


class SpoiltBuffers:
    """Norms of those that training changes, asked for now and read when asked again."""

    def __init__(self, buffers: Buffers, readback: Readback, faults: Faults) -> None:
        self._buffers, self._readback, self._faults = buffers, readback, faults
        self._asked: Pending | None = None

    def count(self) -> float | None:
        """How many were not finite when this was called last; None where that is not known yet."""
        asked, found = self._asked, None
        if asked is not None and asked.arrived():
            self._asked = None
            spoilt = [name for name, norm in asked.read().items() if not math.isfinite(norm)]
            found = float(len(spoilt))
            if spoilt:
                named = ", ".join(spoilt[:NAMED]) + (", ..." if len(spoilt) > NAMED else "")
                self._faults.note("buffers", f"buffers are not finite: {named}. {REMEDY}")
        if self._asked is None and self._buffers.changing:
            norms = self._buffers.norms()
            self._asked = self._readback.send_many(norms) if norms else None
        return found
