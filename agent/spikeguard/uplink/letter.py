"""One message on its way to the server, as the outbox holds it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Protocol

from spikeguard.uplink.thinning import Stage
from spikeguard_protocol import Record


class Draft(Protocol):
    """What a call makes a record of, out of values that nobody changes any more."""

    def __call__(self) -> Record: ...


Mark = tuple[Stage, int]  # how far a message was thinned out, and the bytes that it then had


@dataclass(slots=True)
class Letter:
    """One message; its lines are on disk, or in memory where the disk failed."""

    sequence: int
    size: int = 0
    records: int = 0
    at: float = field(default_factory=time.monotonic)  # of the newest record
    begun_at: float = math.inf  # of the oldest
    lines: list[bytes] | None = None
    stage: Stage = Stage.WHOLE
    watched: bool = False  # some of it was made while the server asked for detail
