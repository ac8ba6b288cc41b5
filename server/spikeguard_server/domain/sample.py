"""What was measured at one step, as the domain sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spikeguard_protocol import BatchRange


@dataclass(frozen=True, slots=True)
class Sample:
    """One step of one segment. A signal that was not measured is absent, never NaN."""

    step: int
    values: Mapping[str, float]  # signal name -> value; NaN and infinities were really measured
    batches: BatchRange | None = None  # the positions it consumed
