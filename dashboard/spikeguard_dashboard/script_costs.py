"""What the scripts of each visitor cost beyond what one usually does.

Pages differ by ten times in what they compute, and all share one interpreter: whoever asks for the
dear ones, as often as they may ask for any, would have everybody wait. The threads that run scripts
tell here what each took; `visitors` asks when the next may run.

Invariants: any thread may call; bounded in number. Who asked is read from a header that `visitors`
alone writes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, local
from time import thread_time
from typing import Final

HEADER: Final = "x-spikeguard-visitor"
USUAL_S: Final = 0.2  # of a core, that a script takes
REMEMBERED: Final = 2000


@dataclass
class Costs:
    """Scripts' worth of work that was done for each and is not paid yet."""

    _owed: OrderedDict[str, float] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)
    _inside: local = field(default_factory=local)
    _ran: bool = False

    @contextmanager
    def counted(self, visitor: str) -> Iterator[None]:
        """Count what this thread computes while it is in here; what lies in another one that
        counts is counted once."""
        if getattr(self._inside, "counts", False):
            yield
            return
        self._inside.counts, began_s = True, thread_time()
        try:
            yield
        finally:
            self._inside.counts = False
            self.add(visitor, thread_time() - began_s)

    def add(self, visitor: str, seconds: float) -> None:
        """A script of `visitor` took so many seconds of a core. The first one of a process loads
        what all others find loaded, and is nobody's."""
        first, self._ran = not self._ran, True
        more = seconds / USUAL_S - 1.0
        if more <= 0.0 or first:
            return
        with self._lock:
            self._owed[visitor] = self._owed.pop(visitor, 0.0) + more
            while len(self._owed) > REMEMBERED:
                self._owed.popitem(last=False)

    def pay(self, visitor: str) -> float:
        """How many scripts more than ran are owed; nothing is owed any more."""
        with self._lock:
            return self._owed.pop(visitor, 0.0)


COSTS: Final = Costs()  # of this process
