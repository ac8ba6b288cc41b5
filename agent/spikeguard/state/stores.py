"""Where states of the run are kept."""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard.state.checkpoints import CheckpointDirectory
from spikeguard.state.snapshots import Snapshots
from spikeguard.state.staging_buffers import StagingBuffers


@dataclass(slots=True)
class StateStores:
    """In memory and on disk; None: none is kept there."""

    snapshots: Snapshots | None
    checkpoints: CheckpointDirectory | None
    staging: StagingBuffers  # what a state is copied into

    @property
    def writes(self) -> bool:
        """Whether the agent itself writes checkpoints."""
        return self.checkpoints is not None and not self.checkpoints.writes_itself
