"""What `spikeguard up` started, watched: when one process ends by itself, everything ends.

A process manager starts `up` again; what is stored stays.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final, Protocol

LOOK_EVERY_S: Final = 0.2
PAUSE_S: Final = 0.5  # by then a stop of the whole machine has reached us as well


class Child(Protocol):
    """A process of ours."""

    @property
    def name(self) -> str: ...

    @property
    def log(self) -> Path: ...

    def ended(self) -> bool:
        """Whether it is gone."""


class Supervisor:
    """Looks after all processes in one thread."""

    def __init__(self) -> None:
        self.failure: str | None = None  # why everything ends, if a process ended by itself
        self._stopping = Event()

    def stop(self) -> None:
        """A process that ends from now on is meant to."""
        self._stopping.set()

    @contextmanager
    def watching(self, *children: Child) -> Iterator[None]:
        """Look after `children` beside the server."""
        thread = Thread(target=self._watch, args=(children,), name="supervise", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join()

    def _watch(self, children: Sequence[Child]) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            gone = next((child for child in children if child.ended()), None)
            if gone is None:
                continue
            if not self._stopping.wait(PAUSE_S):
                self.failure = (
                    f"{gone.name} ended, so everything is stopped; what is stored stays. See why "
                    f"in {gone.log}, mend it, and run `spikeguard up` again"
                )
                os.kill(os.getpid(), signal.SIGTERM)
            return
