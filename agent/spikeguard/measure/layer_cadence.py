"""Of which steps the gradient norm of each parameter is measured."""

from __future__ import annotations

from spikeguard.settings import Settings
from spikeguard.topology.layout import Topology


class LayerCadence:
    """By step, and at every step while the server asks for it."""

    def __init__(self, settings: Settings, topology: Topology) -> None:
        self._every, self._cycle = settings.layer_norms_every, settings.slow_signals_every
        self._recorded = settings.flight_recorder > 0
        # Each rank measures its part, and the agent's own group adds them up once the votes have
        # said that all have it (`agreement`): a wish that one rank hears earlier must not decide
        # which collectives the job's own ranks make.
        self.in_parts = topology.parted and topology.ranks > 1

    def due(self, step: int, attentive: bool) -> bool:
        """Whether they are measured in `step`."""
        if self._every > 0 and step % self._every == 0:
            return True
        if self._recorded and step % self._cycle == self._cycle - 1:
            return True
        return attentive and (self._recorded or self._every > 0)
