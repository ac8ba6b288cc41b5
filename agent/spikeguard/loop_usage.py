"""How the loop uses the guard: items and optimizer steps for each `guard.step()`.

Looked at once in 16 steps. Items that are fetched ahead, the end of a pass and a gradient scaler
that skips steps make single stretches differ, so only two in a row tell, or the same wrong number
of items at each of the last steps. A thread that fills a queue may fetch more for long.
"""

from __future__ import annotations

from typing import Final

from spikeguard.data import DataFeed

STRETCH: Final = 16  # steps
ALIKE: Final = 8  # steps in a row with the same wrong number of items
MOST_HELD: Final = 4_096  # positions that a loop has fetched ahead, whatever fetches them
FEW: Final = 0.75  # of `micro_batches`, on average
SKIPPED: Final = 0.5  # of the calls of `guard.step()` without the optimizer's


class LoopUsage:
    """Counts of one attempt; what was found stands."""

    def __init__(self, micro_batches: int) -> None:
        self._micro = micro_batches
        self._steps = self._items = self._updates = 0  # when it was looked at last
        self._odd = self._idle = 0  # stretches in a row
        self.unseen = False  # the optimizer's hooks have never run
        self.steps_each: float | None = None  # calls of `guard.step()` for one of the optimizer

    def look(self, feed: DataFeed, updates: int) -> bool:
        """Whether there is something new; `updates`: how often the optimizer's hooks ran."""
        steps, items = feed.steps - self._steps, feed.handed - self._items
        done = updates - self._updates
        if steps < STRETCH:
            return False
        self._steps, self._items, self._updates = feed.steps, feed.handed, updates
        counted = feed.in_use and not feed.restarts
        news = counted and self._look_at_items(feed, steps, items)
        return self._look_at_updates(updates, steps, done) or news

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
        before = (self.unseen, self.steps_each)
        self.unseen = updates == 0 and self._idle >= 2
        if self.steps_each is None and done and self._idle >= 2:
            self.steps_each = steps / done
        return before != (self.unseen, self.steps_each)
