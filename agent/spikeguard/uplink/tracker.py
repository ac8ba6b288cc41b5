"""Each step's values also to a function of the user's own: TensorBoard, Weights & Biases, others.

Law: it runs in a thread of its own, behind a bounded queue of which the oldest steps are dropped.
What it raises, and what is dropped, is counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

from spikeguard.faults import Faults

Write = Callable[[dict[str, float], int], object]  # values by signal, step
WAITING = 1_000  # steps between the loop and the function
CLOSE_S = 3.0  # close() waits no longer for it


class Tracker:
    """Feeds `write` from the side."""

    def __init__(self, write: Write, faults: Faults) -> None:
        self._write, self._faults = write, faults
        self._waiting: deque[tuple[int, dict[str, float]]] = deque(maxlen=WAITING)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Called from the loop: never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spikeguard-forward")
            self._thread.daemon = True
            self._thread.start()
        if len(self._waiting) == WAITING:
            self._faults.note("forward", f"it is {WAITING} steps behind: the oldest is dropped")
        self._waiting.append((step, dict(values)))
        self._wake.set()

    def close(self) -> None:
        """Write what waits, for at most `CLOSE_S`."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not (self._closing.is_set() and not self._waiting):
            self._wake.wait()
            self._wake.clear()
            while self._waiting:
                step, values = self._waiting.popleft()
                with self._faults.shield_thread("forward"):
                    self._write(values, step)
