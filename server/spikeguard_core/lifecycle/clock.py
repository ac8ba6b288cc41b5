"""Jumps of the wall clock, and durations measured across them.

Two clocks run side by side: the database's wall clock, by which everything is stored, and one of
the process that nobody sets. Where the distance between them changes, the wall clock jumped.

Invariants
- A reading is an interval: its round trip is never taken for a jump.
- What is old enough to be deleted is so by the time that went by, not by the dates that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

JUMP_S: Final = 30.0  # less is drift, or a process that was held up
UNWATCHED_S: Final = 86_400.0  # no server looked for longer: stopped, or a jump; nobody can tell


@dataclass(frozen=True, slots=True)
class Reading:
    """The database's clock, and the process's own before and after it was asked, seconds."""

    wall_s: float  # since the epoch
    before_s: float
    after_s: float

    @property
    def distance_s(self) -> tuple[float, float]:
        """Between which the wall clock lies ahead of the process's own."""
        return self.wall_s - self.after_s, self.wall_s - self.before_s


@dataclass(frozen=True, slots=True)
class ClockJump:
    """One instant, as the clock told it before and after it was set, seconds since the epoch."""

    before_s: float
    after_s: float


def jumped_s(expected_s: float, reading: Reading) -> float:
    """By how much the wall clock jumped since it lay `expected_s` ahead; 0.0: it did not."""
    least, most = reading.distance_s
    nearest = min(max(expected_s, least), most)
    off = nearest - expected_s
    return off if abs(off) > JUMP_S else 0.0


def jumped_unseen_s(seen_s: float, wall_s: float) -> float:
    """The same where no process remembers more than when a server last looked; a clock that went
    forward by less may be a stop of all servers."""
    gone_s = wall_s - seen_s
    return gone_s if gone_s < -JUMP_S or gone_s > UNWATCHED_S else 0.0


def moment_ago(jumps: Sequence[ClockJump], now_s: float, span_s: float) -> float:
    """The latest time that is not later than anything stored within the last `span_s` of real time.

    `jumps`: newest first. What was moved with a jump is dated as if the clock had been so always.
    """
    moment_s, left_s, found_s = now_s, span_s, now_s - span_s
    for jump in jumps:
        counted_s = max(moment_s - jump.after_s, 0.0)
        if counted_s >= left_s:
            break
        moment_s, left_s = jump.before_s, left_s - counted_s
        found_s = min(found_s, moment_s - left_s)
    return found_s
