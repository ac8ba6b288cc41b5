"""How often a snapshot is taken: as `Settings.snapshot_every` says or, where it is None, as often
as copying may take of the steps' time (`Settings.snapshot_budget`).

Each rank measures its own copies and steps. The largest interval that any rank asks for travels
with the vote, so that all ranks change to it at the same boundary.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from spikeguard.settings import Settings

INTERVALS: Final = (20, 40, 100, 200, 500, 1_000)  # steps; multiples of the first
NEWEST: Final = 5  # copies whose median counts
MEASURED: Final = "a copy takes"  # in the words, once it was


class SnapshotCadence:
    """The same interval on every rank."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        """`device`: from which the copies are made."""
        self._budget, self._device = settings.snapshot_budget, device
        self._by_budget = settings.snapshot_every is None and settings.snapshot_budget > 0.0
        self.interval = INTERVALS[0] if settings.snapshot_every is None else settings.snapshot_every
        self.finest = self.interval  # every snapshot falls on a multiple of it; 0: there are none
        self._copies: deque[float] = deque(maxlen=NEWEST)  # seconds
        self._step_s = 0.0
        self._before: tuple[int, float] | None = None  # step and time of the newest snapshot
        self._events: tuple[Any, Any, float] | None = None  # around a copy on the way; host seconds
        self._due = (-1, False)  # the step that was asked for last, and the answer

    def due(self, step: int) -> bool:
        """Whether a snapshot is taken at the end of `step`; the same answer throughout the step."""
        if step != self._due[0]:
            self._due = step, self.interval > 0 and step % self.interval == 0
        return self._due[1]

    @contextmanager
    def timed(self, step: int, usual: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Around the taking of a snapshot at the end of `step`.

        `usual`: whether it took what later ones will; it did not where its memory was made ready.
        """
        self._note_arrived()
        began = time.monotonic()
        if self._before is not None and step > self._before[0]:
            self._step_s = (began - self._before[1]) / (step - self._before[0])
        self._before = step, began
        first = self._recorded()
        yield
        spent_s = time.monotonic() - began
        if not usual():
            return
        if first is None:
            self._copies.append(spent_s)
        else:
            self._events = first, self._recorded(), spent_s

    def wanted(self) -> int:
        """The interval by which this rank keeps within the budget; 0 while that is not known."""
        self._note_arrived()
        if not (self._by_budget and self._copies and self._step_s):
            return 0
        steps = math.ceil(self.copy_s / (self._budget * self._step_s))
        return next((each for each in INTERVALS if each >= steps), INTERVALS[-1])

    def _note_arrived(self) -> None:
        """The newest copy's time, once the device has made it."""
        if self._events is not None and self._events[1].query():
            first, last, spent_s = self._events
            self._copies.append(max(spent_s, first.elapsed_time(last) / 1e3))
            self._events = None

    def agree(self, interval: int) -> bool:
        """All ranks at the same boundary: take over what they came to; whether it is another."""
        changed = 0 < interval != self.interval
        if changed:
            self.interval = interval
        return changed

    @property
    def copy_s(self) -> float:
        """Seconds that a copy takes: the median of the newest."""
        return statistics.median(self._copies) if self._copies else 0.0

    def words(self) -> str:
        """How often, and what was measured, for the table of what the job can do."""
        if not self._by_budget:
            return f"one every {self.interval} steps"
        share = f"{100 * self._budget:.3g} %"
        if not (self._copies and self._step_s):
            return (
                f"one every {self.interval} steps, less often once it is measured that copying "
                f"would take more than {share} of the steps' time (Settings.snapshot_budget)"
            )
        spent = self.copy_s / (self.interval * self._step_s)
        return (
            f"one every {self.interval} steps: {MEASURED} {_duration(self.copy_s)}, "
            f"{100 * spent:.2g} % of steps of {_duration(self._step_s)} "
            f"(Settings.snapshot_budget is {share})"
        )

    def _recorded(self) -> Any:
        """An event on the stream whose work the copy delays; None on a CPU."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"
