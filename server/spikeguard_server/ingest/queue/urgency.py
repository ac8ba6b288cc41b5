"""Which of a client's waiting messages is taken first: one whose newest loss stands out.

Law: a guess by the look of the bytes, which orders what waits and decides nothing; what it misses
waits its turn. Only what was taken is looked at, and under its own token: nobody else can spoil
the look. Memory is bounded, and a run is urgent once in `REST_S`, however it looks: a run
that has diverged holds up nobody.
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
LONGEST: Final = 40  # characters of a number that is read; `repr` of a float takes 24
_LOSS = b'"loss":['


@dataclass(slots=True)
class _Run:
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    rests_until: float = -math.inf


class Urgency:
    """What the newest messages of each run looked like. Used by one thread."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, _Run] = {}

    def of(self, line: Hashable, body: bytes, now: float) -> bool:
        """Whether the message `body` of the run `line` is to be taken before others, at `now`
        (seconds of a clock that does not go back)."""
        loss = newest_loss(body)
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


def newest_loss(body: bytes) -> float | None:
    """The last loss of the message's first samples, in nats; None where none is to be seen.

    In one pass over the bytes: it runs in the event loop, and nobody has checked them yet.
    """
    found = body.find(_LOSS)
    end = body.find(b"]", found)
    if found < 0 or end < 0:
        return None
    last = body[max(found + len(_LOSS), end - LONGEST) : end].rpartition(b",")[2]
    try:
        return float(last.strip(b' "'))
    except ValueError:
        return None


def stands_out(loss: float, before: deque[float]) -> bool:
    """Whether it is not finite, or far above all of a full window."""
    if not math.isfinite(loss):
        return True
    if len(before) < WINDOW:
        return False
    highest = max(before)
    return loss > highest + BEYOND * (highest - min(before))
