"""What was measured layer by layer of late, kept until somebody wants to know.

While a recorder runs, norms by layer are measured once in `slow_signals_every` steps and wait here,
on the host. When the server starts to watch closely (a precursor or an incident), everything that
waits goes into the outbox, once, and what is measured from then on follows until the server is
content.
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
from spikeguard.settings import Settings
from spikeguard_protocol import LayerNorms, OptionalSignal, Signal
from spikeguard_protocol.messages import MAX_LAYERS

GRAD_NORM, ACTIVATION_NORM = Signal.GRAD_NORM.value, OptionalSignal.ACTIVATION_NORM.value


class Detail(NamedTuple):
    """Norms by layer of one step; a call waits for them and makes the record."""

    segment: int
    step: int
    signal: str
    norms: Pending

    def __call__(self) -> LayerNorms:
        names = self.norms.names[:MAX_LAYERS]
        return LayerNorms(
            self.segment, self.step, self.signal, dict(zip(names, self.norms.take(), strict=False))
        )


class FlightRecorder:
    """The newest measurements by layer; with none to keep it passes everything on."""

    def __init__(self, settings: Settings) -> None:
        self._steps = settings.flight_recorder
        self._every = {
            Signal.GRAD_NORM.value: settings.layer_norms_every,
            OptionalSignal.ACTIVATION_NORM.value: settings.sampled_signals_every,
        }
        self._kept: deque[list[Detail]] = deque(maxlen=self._steps)
        self._told = False  # that some layers are left out

    def pass_on(self, row: Row, watched: bool) -> Iterable[Detail]:
        """What is to be sent now of `row` and of the steps before it; the rest is kept."""
        details = details_of(row)
        if not self._told:
            self._tell_of_cut(details)
        if not self._steps:
            return details
        if watched:
            return [*self._emptied(), *details]
        due: list[Detail] = []
        kept: list[Detail] = []
        for detail in details:
            (due if self._is_due(detail) else kept).append(detail)
        if kept:
            self._kept.append(kept)
        return due

    def _tell_of_cut(self, details: list[Detail]) -> None:
        for detail in details:
            most = len(detail.norms.names)
            if most > MAX_LAYERS:
                self._told = True
                log.warning(
                    "norms by layer are told of the first %d of %d layers", MAX_LAYERS, most
                )
                return

    def _is_due(self, detail: Detail) -> bool:
        every = self._every[detail.signal]
        return every > 0 and detail.step % every == 0

    def _emptied(self) -> list[Detail]:
        kept = [detail for details in self._kept for detail in details]
        self._kept.clear()
        return kept


def details_of(row: Row) -> list[Detail]:
    """What `row` tells layer by layer."""
    found = []
    if row.layers is not None:
        found.append(Detail(row.segment, row.step, GRAD_NORM, row.layers))
    if row.activations is not None:
        found.append(Detail(row.segment, row.step, ACTIVATION_NORM, row.activations))
    return found
