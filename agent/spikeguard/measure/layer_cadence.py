"""Of which steps the gradient norm of each parameter is measured, and by which reduction."""

from __future__ import annotations

from spikeguard.settings import Settings
from spikeguard.topology.layout import Topology


class LayerCadence:
    """By step, and at every step while the server asks for it."""

    def __init__(self, settings: Settings, topology: Topology) -> None:
        self._every, self._cycle = settings.layer_norms_every, settings.slow_signals_every
        self._recorded = settings.flight_recorder > 0
        self._parted, self._several = topology.parted, topology.ranks > 1

    def whole(self, step: int, attentive: bool) -> bool:
        """Whether they are measured with the norm of all, in the same reduction.

        Where ranks hold different parts it takes a larger all-reduce of the job's own, so there the
        step alone decides: not all ranks hear of an incident if one of them is cut off.
        """
        if self._every > 0 and step % self._every == 0:
            return True
        if self._recorded and step % self._cycle == self._cycle - 1:
            return True
        return attentive and not self._parted and (self._recorded or self._every > 0)

    def parts(self, attentive: bool) -> bool:
        """Whether each rank measures its part, where `whole` says no: the agent's own group adds
        them up, once the ranks' votes have said that all of them have it (`agreement`)."""
        asked = attentive and (self._recorded or self._every > 0)
        return asked and self._parted and self._several
