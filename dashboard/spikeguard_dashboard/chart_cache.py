"""The newest charts, each made once for all who look at it.

A page that is open asks for its charts every few seconds, and to make one takes more than to send
it. A chart of 2,000 points is 1 MB, and a run has up to 150 signals: what each session kept for
itself would grow with all that it looked at.

Invariants: bounded in rows, whoever looks at whatever. Its key is a digest of all that a chart is
made of. What is given out is shared, and changed by nobody. Any thread may call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from hashlib import blake2b
from threading import Lock
from typing import Final

from spikeguard_dashboard.charts import Spec

MOST_ROWS: Final = 100_000  # some 500 bytes each; a page of four signals has 8,000
EMPTY: Final = 50  # rows that a chart without any counts as


class ChartCache:
    """Makes what nobody looked at lately."""

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self._most, self._rows = most_rows, 0
        self._charts = OrderedDict[bytes, tuple[Spec | None, int]]()
        self._lock = Lock()

    def get(self, made_of: Hashable, make: Callable[[], Spec | None]) -> Spec | None:
        """What `made_of` makes; None where there is nothing to draw."""
        key = blake2b(repr(made_of).encode()).digest()  # a comparison's holds thousands of segments
        with self._lock:
            if (known := self._charts.get(key)) is not None:
                self._charts.move_to_end(key)
                return known[0]
        chart = make()  # two who ask at once both make it
        self._keep(key, chart)
        return chart

    def _keep(self, key: bytes, chart: Spec | None) -> None:
        rows = EMPTY + rows_of(chart)
        with self._lock:
            _, before = self._charts.pop(key, (None, 0))
            self._charts[key] = chart, rows
            self._rows += rows - before
            while self._rows > self._most:
                _, (_, freed) = self._charts.popitem(last=False)
                self._rows -= freed


def rows_of(chart: Spec | None) -> int:
    """What most of a chart's memory is; they lie in it by name."""
    return 0 if chart is None else sum(map(len, chart.get("datasets", {}).values()))


CHARTS: Final = ChartCache()  # of this process
