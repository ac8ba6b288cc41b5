"""GradScalers among the entries of `state=`, and the jobs in which one cannot work.

A scaler looks at this rank's gradients alone. Of pipeline stages, and of ranks with experts of
their own, one would skip its step and halve its scale while the others do neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.amp.grad_scaler import GradScaler

from spikeguard.errors import AttachError
from spikeguard.ranks.layout import Topology


def scalers_of(given: Sequence[Any]) -> list[Any]:
    """Those that are switched on."""
    return [each for each in given if isinstance(each, GradScaler) and each.is_enabled()]


def refuse_scalers(given: Sequence[Any], topology: Topology) -> None:
    """Raise `AttachError` where ranks see different gradients; the same on all ranks."""
    if topology.cut_by_hand and scalers_of(given):
        raise AttachError(
            "state",
            "a GradScaler judges the gradients of one rank, and the ranks of a pipeline or of "
            "shard groups have different ones: they would skip different steps",
            "Train in bf16, which needs no scaler",
        )
