"""How the loop uses the guard: items and optimizer steps for each `guard.step()`, and what else it
shows: a counter of its own that a rollback did not take back.

Looked at once in 16 steps. Items that are fetched ahead, the end of a pass and a gradient scaler
that skips steps make single stretches differ, so only two in a row tell, or the same wrong number
of items at each of the last steps. A thread that fills a queue may fetch more for long.
Invariants: no value is read from a device. What was found is told once and stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from spikeguard.data.feed import DataFeed

STRETCH: Final = 16  # steps
ALIKE: Final = 8  # steps in a row with the same wrong number of items
MOST_HELD: Final = 4_096  # positions that a loop has fetched ahead, whatever fetches them
FEW: Final = 0.75  # of `micro_batches`, on average
SKIPPED: Final = 0.5  # of the calls of `guard.step()` without the optimizer's
REMEMBERED: Final = 6_000  # steps whose learning rate is
HALF: Final = torch.float16


class LoopUsage:
    """Counts of one attempt; what was found stands."""

    def __init__(self, micro_batches: int) -> None:
        self._micro = micro_batches
        self.news = False  # since `look` was called last
        self.half = False  # computes in fp16, seen at the first loss
        self.rates: tuple[int, float, float] | None = None  # of a step when trained first, and now
        self._precision_unseen = True
        self._segment = 0  # of the newest rate
        self.rates_by_step: dict[int, float] = {}
        self._steps = self._items = self._updates = 0  # when it was looked at last
        self._odd = self._idle = self._without = 0  # stretches in a row
        self.unseen = False  # the optimizer's hooks do not run
        self.steps_each: float | None = None  # calls of `guard.step()` for one of the optimizer

    def look(self, feed: DataFeed, updates: int) -> bool:
        """Whether there is something new; `updates`: how often the optimizer's hooks ran."""
        steps, items = feed.steps - self._steps, feed.handed - self._items
        done = updates - self._updates
        told, self.news = self.news, False
        if steps < STRETCH:
            return told
        self._steps, self._items, self._updates = feed.steps, feed.handed, updates
        counted = feed.in_use and not feed.restarts
        news = counted and self._look_at_items(feed, steps, items)
        return self._look_at_updates(updates, steps, done) or news or told

    def look_at_loss(self, loss: Tensor) -> None:
        """The first one: which precision it was computed in."""
        if self._precision_unseen:
            kind, self._precision_unseen = loss.device.type, False
            self.half = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is HALF

    def see_rate(self, step: int, segment: int, rates: Sequence[Any]) -> None:
        """The learning rate that the loop has set for `step`."""
        rate = rates[0] if rates else None
        if type(rate) is not float:  # a tensor's value is the device's
            return
        if segment != self._segment:
            self._segment = segment
            before = self.rates_by_step.get(step, rate)
            if self.rates is None and not math.isclose(before, rate, rel_tol=1e-9):
                self.rates, self.news = (step, before, rate), True
        self.rates_by_step[step] = rate
        self.rates_by_step.pop(step - REMEMBERED, None)

    def _look_at_items(self, feed: DataFeed, steps: int, items: int) -> bool:
        if feed.items_per_step is not None:
            return False
        each = items / steps
        more = each >= self._micro + 1 and not feed.threaded
        fewer = each <= FEW * self._micro and not feed.held
        self._odd = self._odd + 1 if more or fewer else 0
        if feed.alike >= ALIKE and (more or (each < self._micro and not feed.held)):
            feed.items_per_step = float(feed.taken)
        elif self._odd >= 2 or feed.held > MOST_HELD:
            feed.items_per_step = each
        return feed.items_per_step is not None

    def _look_at_updates(self, updates: int, steps: int, done: int) -> bool:
        self._idle = self._idle + 1 if done <= SKIPPED * steps else 0
        self._without = 0 if done else self._without + 1
        before = (self.unseen, self.steps_each)
        self.unseen = self._without >= 2 and (updates == 0 or self.steps_each is None)
        if self.steps_each is None and done and self._idle >= 2:
            self.steps_each = steps / done
        return before != (self.unseen, self.steps_each)
