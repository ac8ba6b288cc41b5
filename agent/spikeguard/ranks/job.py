"""What a job is made of: which optimizers train which modules, and how the ranks hold those.

Described once, at `attach()`; norms, clipping, skipping, the scaling of rates and the saving of
states go by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spikeguard.ranks.layout import Topology


@dataclass(frozen=True, slots=True)
class Job:
    """One rank's view of it; ranks differ in what they hold, not in what is known."""

    parts: tuple[torch.nn.Module, ...]  # one, or those of a model that is cut into several
    optimizers: tuple[torch.optim.Optimizer, ...]  # each parameter that trains has one of them
    topology: Topology
    unsaved: str = ""  # why; empty where state_dict and load_state_dict work

    @property
    def known(self) -> bool:
        """Whether what a rank measures is, or adds up to, what all ranks measure."""
        return self.topology.known
