"""Which of a client's waiting messages is taken first: one whose newest loss stands out.

Invariants: it orders what waits and decides nothing; what it misses waits its turn. Only what was
taken is looked at, and under its own token: nobody else can spoil the look. Memory is bounded, and
a run is urgent once in `REST_S`, however it looks: a run that has diverged holds up nobody.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

WINDOW: Final = 16  # newest losses of a run, one a message
BEYOND: Final = 0.5  # of their range above the highest: 1 of 5,000 calm ones, if they are normal
REST_S: Final = 5.0
MOST_RUNS: Final = 4000  # those that sent last


@dataclass(slots=True)
class _Run:
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    rests_until: float = -math.inf


class UrgentRuns:
    """What the newest messages of each run looked like. Used by one thread."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, _Run] = {}

    def of(self, line: Hashable, loss: float | None, now: float) -> bool:
        """Whether a message of the run `line`, whose newest loss this is, is to be taken before
        others, at `now` (seconds of a clock that does not go back)."""
        if loss is None:
            return False
        run = self._runs.pop(line, None) or _Run()
        self._runs[line] = run
        if len(self._runs) > MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        out = stands_out(loss, run.losses)
        if math.isfinite(loss):
            run.losses.append(loss)
        if not out or now < run.rests_until:
            return False
        run.rests_until = now + REST_S
        return True


def stands_out(loss: float, before: deque[float]) -> bool:
    """Whether it is not finite, or far above all of a full window."""
    if not math.isfinite(loss):
        return True
    if len(before) < WINDOW:
        return False
    highest = max(before)
    return loss > highest + BEYOND * (highest - min(before))
