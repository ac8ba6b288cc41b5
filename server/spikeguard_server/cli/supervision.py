"""The processes of `spikeguard up`, started again when they end, within a limit.

Invariants:
- A process is started again at most `most` times within `within_s`. When it ends once more, `up`
  ends with a status that is not 0, and names the process and its log.
- Nothing is started once the stop has begun.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final, Protocol

_log = logging.getLogger(__name__)
LOOK_EVERY_S: Final = 0.2
FIRST_PAUSE_S: Final = 0.5  # by then a stop of the whole machine has reached us as well
LONGEST_PAUSE_S: Final = 10.0


class Child(Protocol):
    """A process that can be started again."""

    @property
    def name(self) -> str: ...

    @property
    def log(self) -> Path: ...

    def ended(self) -> bool:
        """Whether it is gone."""

    def restart(self) -> None:
        """Start it; raise where that fails."""


@dataclass(frozen=True, slots=True)
class RestartLimit:
    """How often a process is started again."""

    most: int
    within_s: float

    def recent(self, ends: Sequence[float], now: float) -> tuple[float, ...]:
        """The ends that count."""
        return tuple(at for at in ends if now - at <= self.within_s)

    def pause_s(self, ends: Sequence[float]) -> float | None:
        """How long to wait before the next start, after recent `ends`; None: no more."""
        if len(ends) > self.most:
            return None
        return float(min(FIRST_PAUSE_S * 2 ** (len(ends) - 1), LONGEST_PAUSE_S))


class Supervisor:
    """Looks after all processes in one thread."""

    def __init__(self) -> None:
        self.failure: str | None = None  # why everything ends, if a process ended too often
        self._stopping = Event()

    def stop(self) -> None:
        """Start nothing from now on."""
        self._stopping.set()

    @contextmanager
    def watching(self, limit: RestartLimit, *children: Child) -> Iterator[None]:
        """Look after `children` beside the server."""
        thread = Thread(target=self._watch, args=(limit, children), name="supervise", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join()  # a start that is under way ends within its own limit

    def _watch(self, limit: RestartLimit, children: Sequence[Child]) -> None:
        ends: dict[str, tuple[float, ...]] = {child.name: () for child in children}
        while not self._stopping.wait(LOOK_EVERY_S):
            for child in children:
                if not child.ended():
                    continue
                now = time.monotonic()
                ends[child.name] = limit.recent((*ends[child.name], now), now)
                if not self._start_again(child, limit, ends[child.name]):
                    return

    def _start_again(self, child: Child, limit: RestartLimit, ends: Sequence[float]) -> bool:
        """Whether there is more to look after."""
        pause_s = limit.pause_s(ends)
        if pause_s is None:
            self._give_up(child, limit, len(ends))
            return False
        if self._stopping.wait(pause_s):
            return False
        counted = f"{len(ends)} of {limit.most} within {limit.within_s:g} s"
        _log.warning(f"{child.name} ended and is started again ({counted}); its log: {child.log}")
        try:
            child.restart()
        except Exception as error:  # it has ended, and the next look counts that
            _log.warning(f"{child.name} could not be started: {error}")
        return True

    def _give_up(self, child: Child, limit: RestartLimit, times: int) -> None:
        if self._stopping.is_set():
            return
        self.failure = (
            f"{child.name} ended {times} times within {limit.within_s:g} s, and is not started "
            f"again: everything is stopped, what is stored stays. See why in {child.log}, mend it, "
            "and run `spikeguard up` again; SPIKEGUARD_CHILD_RESTARTS is how often it is started "
            "again within SPIKEGUARD_CHILD_RESTARTS_WITHIN_S"
        )
        os.kill(os.getpid(), signal.SIGTERM)
